"""Fit the constants that ship in ``src/joulery/prediction/fitted.json`` to measurements by others.

usage: PYTHONPATH=src python scripts/fit_predict.py [--data DIR]

Only means and covariances of constants are written, never rows of the data. Energies per operation
and the scales of intervals are kept; ``benchmarks/predict.py`` says how far off everything is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

FILE = ROOT / "src/joulery/prediction/fitted.json"
SOURCES = (
    "NeuSight (ASPLOS'25), AIConfigurator, Zeus (NSDI'23), Perseus (SOSP'24), Emerald AI, "
    "gpu_power_benchmark, Megatron-Bridge and llm-foundry data, and the published trainings of "
    "benchmarks/predict_runs.py; log-constants, natural logarithms"
)


def main() -> None:
    """Fit every belief with all devices in."""
    from predict_fit import fit_all

    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(ROOT.parent / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    document = fit_all(parser.parse_args().data)
    document |= {"made_by": "scripts/fit_predict.py", "sources": SOURCES}
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
