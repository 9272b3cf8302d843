#!/usr/bin/env python3
"""The solver's CPLEX LP dumps, solved by cbc: the full and the reduced program have the solver's optimum.

    solver_cbc.py TEST_SOLVER

TEST_SOLVER --dump DIR writes NAME.full.lp, NAME.reduced.lp and NAME.txt (the optimum, or "infeasible")."""
import pathlib
import shutil
import subprocess
import sys
import tempfile


def cbc(path):
    """The optimum as an integer, or "infeasible"."""
    solution = path.with_suffix(".sol")
    run = subprocess.run(["cbc", str(path), "ratio", "0", "allow", "0", "solve", "solution", str(solution)],
                         capture_output=True, text=True, timeout=120)
    if not solution.exists():
        return "no solution file: " + run.stdout[-300:]
    first = solution.read_text().splitlines()[0]
    if "nfeasible" in first:
        return "infeasible"
    if not first.startswith("Optimal"):
        return first
    return str(round(float(first.split()[-1])))


def main():
    if not shutil.which("cbc"):
        print("skipped: cbc is not installed")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--dump", folder], check=True, stdout=subprocess.DEVNULL)
        for truth in sorted(pathlib.Path(folder).glob("*.txt")):
            want = truth.read_text().strip()
            for kind in ("full", "reduced"):
                got = cbc(truth.with_suffix(f".{kind}.lp"))
                if got == want:
                    passed += 1
                else:
                    failed += 1
                    print(f"FAILED: {truth.stem} {kind}: cbc says {got}, the truth is {want}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
