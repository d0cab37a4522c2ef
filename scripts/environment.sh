# Sourced by scripts/run and scripts/test: makes the virtual environment and installs the project into it.
#
# ADAPTIVE_VENV   where the environment lies (default: .venv in the repository)
# PYTHON          what makes it (default: python3; needs 3.11 or newer)

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${ADAPTIVE_VENV:-$ROOT/.venv}"
[[ "$VENV" == /* ]] || VENV="$PWD/$VENV"

# install_project EXTRA: the project, editable, with that extra. Nothing is done when this was done before and
# neither the dependencies nor their pins have changed since; with the extra `dev` everything needed to run is there.
install_project() {
    local extra="$1" state stamp
    state="$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum) $ROOT"
    for stamp in "$VENV/.installed-$extra" "$VENV/.installed-dev"; do
        if [[ -x "$VENV/bin/python" && -f "$stamp" && "$(cat "$stamp")" == "$state" ]]; then
            return
        fi
    done
    if [[ ! -x "$VENV/bin/python" ]]; then
        make_environment
    fi
    echo "installing into $VENV (once; a few minutes)" >&2
    # Modules are compiled when they are first imported: most of the dependencies' never are.
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-compile \
        -c "$ROOT/constraints.txt" -e "$ROOT[$extra]"
    echo "$state" >"$VENV/.installed-$extra"
}

make_environment() {
    local python="${PYTHON:-python3}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$python is not Python 3.11 or newer; name one that is: PYTHON=python3.12 $0" >&2
        exit 2
    fi
    "$python" -m venv "$VENV"
}
