"""How a page looks: one style sheet for light and dark. Pictures take their colours from it, too (`pictures`)."""

from typing import Final

# Okabe and Ito's palette, which those who do not tell red from green can read; darker for paper, lighter for the dark.
_LIGHT: Final = ("#0072b2", "#d55e00", "#00805e", "#a8478a", "#8a6d00", "#5b5b5b", "#12a0ad", "#7a1f12")
_DARK: Final = ("#56b4e9", "#ff9145", "#22c79b", "#e08fc4", "#e3c132", "#b8b8b8", "#8ff0f5", "#ffd0c7")
COLOURS: Final = len(_LIGHT)


def _variables(colours: tuple[str, ...]) -> str:
    return "".join(f"--s{number}:{colour};" for number, colour in enumerate(colours))


STYLE: Final = (
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#59636e;--grid:#d5dae0;--band:#f4f6f8;"
    "--link:#0550ae;" + _variables(_LIGHT) + "}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e4e8ee;--soft:#9aa6b2;--grid:#39424d;"
    "--band:#1b2129;--link:#79b8ff;" + _variables(_DARK) + "}}\n"
    """*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
header,main{max-width:1340px;margin:0 auto;padding:0 20px}
h1{font-size:1.5rem;margin:24px 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:36px 0 10px;padding-top:10px;border-top:1px solid var(--grid)}
p{max-width:80ch;margin:6px 0 12px;overflow-wrap:anywhere}
header p{color:var(--soft)}
a{color:var(--link)}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:12px 0}
.scroll{overflow-x:auto;margin:8px 0 16px;max-width:100%}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:4px 0}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid);
unicode-bidi:isolate;white-space:pre-wrap;overflow-wrap:anywhere;min-width:5ch;max-width:60ch}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
tbody th{font-weight:500}
.numbers th{overflow-wrap:break-word!important}
.numbers td,.numbers thead th:not(:first-child){text-align:right;overflow-wrap:normal;padding:4px 0 4px 18px}
.numbers td{white-space:nowrap}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));gap:14px 28px}
.gallery.wide{grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr))}
figure{margin:0;min-width:0;max-width:620px}
figcaption{font-weight:600;font-size:14px;margin:6px 0 2px;overflow-wrap:anywhere;unicode-bidi:isolate}
svg{display:block;width:100%;height:auto}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 20px;padding:0;margin:6px 0 10px;font-size:14px}
.legend li{overflow-wrap:anywhere;unicode-bidi:isolate}
.legend span{display:inline-block;width:22px;border-top:3px solid;margin:0 7px 4px 0}
.legend .dashed{border-top-style:dashed}
.columns{display:flex;flex-wrap:wrap;gap:8px 40px;align-items:flex-start}
.columns>div:first-child{max-width:100%}
.columns>div:last-child{flex:1 1 460px;min-width:0}
.columns .gallery:not(.wide){grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
.lead{font-size:1.05rem;font-weight:500}
details{margin:8px 0}
summary{cursor:pointer;color:var(--link)}
"""
    + "".join(f".c{number}{{border-color:var(--s{number})!important}}\n" for number in range(COLOURS))
    + "@media print{details{display:block}nav{display:none}}\n"
)
