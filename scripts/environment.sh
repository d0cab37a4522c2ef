# Sourced by the other scripts: creates the virtual environment and installs the project into it.
#
# ADAPTIVE_VENV   folder of the environment (default: .venv in the repository)
# PYTHON          the Python that creates it (default: python3; needs 3.11 or newer)

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${ADAPTIVE_VENV:-$ROOT/.venv}"
[[ "$VENV" == /* ]] || VENV="$PWD/$VENV"

# install_project EXTRA: install the project, editable, with this extra. Does nothing if it is installed and neither
# the dependencies nor their pins have changed; the extra `dev` includes all others.
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
    # No bytecode: most modules of the dependencies are never imported.
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-compile \
        -c "$ROOT/constraints.txt" -e "$ROOT[$extra]"
    echo "$state" >"$VENV/.installed-$extra"
}

make_environment() {
    local python="${PYTHON:-python3}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$python is older than Python 3.11. Name a newer one: PYTHON=python3.12 $0" >&2
        exit 2
    fi
    "$python" -m venv "$VENV"
}
