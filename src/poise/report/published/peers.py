"""Numbers that other papers print with CLIP ViT-B/16: 11 datasets (ImageNet and the fine-grained ones), and 4 shifts.

Protocols, templates and seeds differ between the papers, so these rows stand beside ours only in the tables ``peers``
and ``peers-shifts``, and each says where it is printed.
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.report.published.paper import SHIFTS, PublishedRow, TableLayout

SOURCES = {
    "cots": "CoTS (Liang et al., 2026), Tables 1, 2, 5, 10 and 11, three seeds",
    "re-run": "re-run by CoTS (Liang et al., 2026) with the official code, Tables 1, 2, 5, 10 and 11, three seeds",
    "readme": "README of A-TPT's code",
    "quoted": "quoted by a later paper",
    "own templates": "quoted by a later paper, with TDA's own templates",
    "files": "result files of DMN's code; texts by a language model, weight chosen on test labels",
}
ELEVEN = (
    "imagenet",
    "dtd",
    "flowers102",
    "food101",
    "sun397",
    "aircraft",
    "pets",
    "caltech101",
    "ucf101",
    "eurosat",
    "cars",
)
METHODS = (
    "zero-shot",
    "tpt",
    "tpt | sals",
    "tpt | cots",
    "tpt | e-cots",
    "c-tpt",
    "o-tpt",
    "penalty",
    "a-tpt",
    "soc",
    "tps",
    "zero",
    "mta",
    "tda",
    "dmn",
)
PEER_LAYOUTS = {
    layout.name: layout
    for layout in (
        TableLayout("peers", "Methods of other papers", ELEVEN, ELEVEN, "Avg.", METHODS),
        TableLayout(
            "peers-shifts", "Methods of other papers on natural distribution shifts", SHIFTS, SHIFTS, "Avg.", METHODS
        ),
    )
}

# method ; source ; metric, then ELEVEN ; their printed average ; A, V2, R, S ; theirs. Empty: not printed.
_PRINTED = """
zero-shot ; cots ; accuracy
66.72 44.33 67.32 83.66 62.58 23.85 88.20 93.96 65.19 42.05 65.56 ; 63.95 ; 47.83 60.94 73.99 46.10 ; 57.22
zero-shot ; cots ; ece
1.98 8.24 2.73 2.08 2.24 5.53 4.45 5.91 2.95 7.10 4.40 ; 4.33 ; 8.34 3.18 3.55 4.87 ; 4.98
tpt ; re-run ; accuracy
68.91 47.12 68.64 84.65 65.50 23.27 87.25 94.08 68.20 42.91 66.58 ; 65.19 ; 54.63 63.45 77.05 47.82 ; 60.74
tpt ; re-run ; ece
10.56 20.96 13.59 4.31 11.23 16.96 5.50 4.36 11.57 20.15 5.08 ; 11.30 ; 15.20 11.88 4.84 15.69 ; 11.90
c-tpt ; re-run ; accuracy
 ; 64.57 ; ; 59.25
c-tpt ; re-run ; ece
 ; 5.23 ; ; 6.67
penalty ; re-run ; accuracy
 ; 64.21 ; ; 60.24
penalty ; re-run ; ece
 ; 8.28 ; ; 10.99
tpt | sals ; cots ; accuracy
 ; 65.20 ; ; 60.74
tpt | sals ; cots ; ece
9.72 18.61 11.93 4.35 11.01 15.76 5.12 4.37 10.66 13.83 3.94 ; 9.94 ; 13.95 10.81 3.87 15.29 ; 10.98
o-tpt ; re-run ; accuracy
 ; 64.05 ; ; 57.51
o-tpt ; re-run ; ece
 ; 4.77 ; ; 4.97
a-tpt ; re-run ; accuracy
 ; 64.12 ; ; 58.20
a-tpt ; re-run ; ece
2.38 8.49 4.23 3.19 4.17 6.25 2.18 5.30 2.63 7.11 1.68 ; 4.33 ; 5.55 2.85 4.09 4.87 ; 4.34
a-tpt ; readme ; accuracy
 ; 64.92 ; ; 58.06
a-tpt ; readme ; ece
1.45 4.76 3.61 1.37 3.28 3.14 1.17 2.76 2.12 3.92 1.09 ; 2.61 ; 6.45 2.96 1.39 4.87 ; 3.92
soc ; re-run ; accuracy
 ; 63.95 ; ; 58.12
soc ; re-run ; ece
3.71 7.63 2.98 2.84 2.84 5.41 1.83 5.80 2.71 7.08 4.63 ; 4.31 ; 8.15 3.65 4.50 3.16 ; 4.87
tpt | cots ; cots ; accuracy
 ; 65.19 ; ; 60.74
tpt | cots ; cots ; ece
3.39 6.67 2.48 1.85 3.51 5.21 2.91 6.13 3.11 7.58 4.29 ; 4.28 ; 7.85 4.37 5.09 3.87 ; 5.30
tpt | e-cots ; cots ; accuracy
69.49 47.32 68.25 84.54 65.67 23.59 86.94 94.13 68.25 41.68 67.57 ; 65.22 ; 60.72 64.49 77.88 48.72 ; 62.95
tpt | e-cots ; cots ; ece
 ; 4.31 ; ; 5.38
tda ; re-run ; accuracy
68.27 46.04 69.75 83.68 65.01 24.06 88.36 94.04 67.99 51.04 66.55 ; ; 50.03 61.87 75.17 48.84 ; 58.98
tda ; re-run ; ece
5.27 17.02 7.76 2.21 5.78 13.98 2.81 3.32 5.88 7.05 1.95 ; ; 11.96 10.06 1.62 10.10 ; 8.44
tda ; own templates ; accuracy
69.51 47.40 71.42 86.14 67.62 23.91 88.63 94.24 70.66 58.00 67.28 ; ; 60.11 64.67 80.24 50.54 ; 63.89
zero ; quoted ; accuracy
69.06 45.80 67.07 84.36 64.49 24.40 86.74 93.51 67.64 39.60 67.54 ; ; 61.35 64.13 77.28 48.29 ; 62.76
mta ; quoted ; accuracy
69.29 45.59 68.26 84.95 64.98 25.32 88.22 94.13 68.11 38.71 68.05 ; ; 57.41 63.61 76.92 48.58 ; 61.63
dmn ; files ; accuracy
72.24 54.61 74.79 85.06 69.99 29.85 91.88 95.09 72.43 57.37 67.77 ; 70.10 ; 58.28 65.27 78.55 52.98 ; 63.77
tps ; re-run ; accuracy
 ; 64.99 ; ; 61.69
tps ; re-run ; ece
 ; 16.79 ; ; 27.16
"""
# Printed averages over the ten datasets after ImageNet, where there is none over all eleven.
TEN = {
    ("zero", "quoted", "accuracy"): 64.1,
    ("mta", "quoted", "accuracy"): 64.63,
    ("tda", "own templates", "accuracy"): 67.53,
    ("tda", "re-run", "accuracy"): 65.65,
    ("tda", "re-run", "ece"): 6.78,
}


def _read() -> Iterator[PublishedRow]:
    lines = _PRINTED.strip().splitlines()
    for head, numbers in zip(lines[::2], lines[1::2], strict=True):
        method, source, metric = (cell.strip() for cell in head.split(";"))
        eleven, average, shifts, shift_average = (cell.split() for cell in numbers.split(";"))
        for layout, cells, mean in (("peers", eleven, average), ("peers-shifts", shifts, shift_average)):
            values = dict(zip(PEER_LAYOUTS[layout].datasets, map(float, cells), strict=True)) if cells else {}
            printed = float(mean[0]) if mean else None
            yield PublishedRow(layout, f"{method}, {source}", method, metric, values, printed, origin=SOURCES[source])


PEER_ROWS = tuple(_read())
