#!/usr/bin/env python3
"""The host runtime as processes over TCP.

usage: runtime_tcp.py COLLECTIVES_TEST TRANSFERS_TEST

Collectives on 2, 4 and 8 processes, whole and in small pieces, and transfers between stages: what the same tests ask of threads and
of MPI.
"""
import sys

from tcp_job import TcpJob

passed = failed = 0


def expect(ok, what, detail=""):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    if not ok:
        print("failed:", what, detail, file=sys.stderr)


def run(n, what, *command):
    job = TcpJob(n, command)
    codes = job.end(300)
    expect(set(codes.values()) == {0} and ", 0 failed" in job.out[0], what, f"{codes} {job.out} {job.err}")
    return job.out[0]


def main():
    collectives, transfers = sys.argv[1:3]
    for n in (2, 4, 8):
        whole = run(n, f"collectives on {n}", collectives)
        if n == 4:
            pieces = run(n, f"collectives in pieces on {n}", collectives, "7")
            expect(whole == pieces, "as many checks", f"{whole} {pieces}")
    for n, which in ((2, 0), (4, 13), (5, 12), (8, 0), (8, 14)):
        run(n, f"transfers of {n} {which}", transfers, str(which))
    print(f"{passed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
