#!/usr/bin/env python3
"""--time-limit ends every kind of search soon after its time, and what it gives is marked. Counted in CPU seconds of mpplan, by
an alarm that rings by them: other programs on the machine change nothing."""
import json
import re
import resource
import sys

import harness as h

ALARM = """#define _GNU_SOURCE
#include <signal.h>
#include <sys/time.h>
#include <time.h>
int setitimer(__itimer_which_t which, const struct itimerval *v, struct itimerval *old)
{
    static timer_t timer;
    static int made;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec s = {.it_value = {v->it_value.tv_sec, v->it_value.tv_usec * 1000}};
    (void)which;
    (void)old;
    if (!made && timer_create(CLOCK_PROCESS_CPUTIME_ID, &e, &timer) != 0)
        return -1;
    made = 1;
    return timer_settime(timer, 0, &s, 0);
}
"""
GPT = [h.ROOT / "models" / "gpt.xml", "--preset"]
LARGE = [*GPT, "gpt3-175b", "--cluster", "dgx-a100"]
SLACK_S = 2  # a second, and what a machine in use adds
CASES = [
    ("one stage", [*GPT, "gpt2", "--gpus", "8", "--fix", "pp=1"], 0.5, 0),
    ("kernels unfused", [*LARGE, "--gpus", "64", "--kernels", "unfused"], 1, (0, 2)),
    ("many devices", [*LARGE, "--gpus", "3072"], 1.5, 0),
    ("--min-gpus", [*LARGE, "--min-gpus"], 1, 2),
    ("nothing fits", [*GPT, "gpt3-175b", "--cluster", "t4-box"], 0.3, 2),
    ("a small model, exactly", [*GPT, "tiny", "--gpus", "6"], 0.5, 0),
]


def build_alarm():
    source, library = h.TMP / "alarm.c", h.TMP / "alarm.so"
    source.write_text(ALARM)
    h.must(h.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source]))
    return {"LD_PRELOAD": str(library)}


def cpu_s():
    u = resource.getrusage(resource.RUSAGE_CHILDREN)
    return u.ru_utime + u.ru_stime


def limited(env, what, args, limit_s, status):
    begun = cpu_s()
    p = h.mpplan(*args, "--predict", "--time-limit", str(limit_s), env=env)
    took = cpu_s() - begun
    h.check(took <= 1.2 * limit_s + SLACK_S, f"{what}: {limit_s} s are about {limit_s} s", f"{took:.2f} s")
    h.check(p.returncode in (status if isinstance(status, tuple) else (status,)), f"{what}: exit status", f"{p.returncode} {p.stderr[-300:]}")
    if p.returncode == 0:
        h.check("stopped by --time-limit" in p.stdout or took < limit_s + 0.5, f"{what}: marked", p.stdout[:600])
    else:
        h.check("stopped" in p.stderr or took < limit_s + 0.5, f"{what}: says that it was stopped", p.stderr[-300:])
        h.check("that does not help" not in p.stderr or took < limit_s + 0.5, f"{what}: nothing is claimed that was not looked at", p.stderr[-300:])


def test_limits():
    env = build_alarm()
    for case in CASES:
        limited(env, *case)


def test_whole_time():
    """Time that is enough changes nothing."""
    args = [*GPT, "tiny", "--gpus", "2", "--predict", "--json"]
    free, timed = h.mpplan(*args), h.mpplan(*args, "--time-limit", "600")
    h.check(free.returncode == 0 and free.stdout == timed.stdout and "stopped" not in json.loads(timed.stdout), "enough time: the same plan")


def test_infeasible():
    """That nothing fits is known soon, the largest tensors have names that the model has, and the way out is one."""
    begun = cpu_s()
    p = h.mpplan(*LARGE, "--gpus", "32", "--predict")
    took = cpu_s() - begun
    h.check(p.returncode == 2 and "no plan fits" in p.stderr, "does not fit: says so", p.stderr[-500:])
    h.check(took < 10, "does not fit: known in 10 CPU seconds", f"{took:.1f} s")
    out = re.search(r"--gpus (\d+) fits", p.stderr)
    if h.check(out, "does not fit: a way out", p.stderr[-500:]):
        h.check(h.mpplan(*LARGE, "--gpus", out[1], "--predict", "--time-limit", "3").returncode == 0, f"does not fit: {out[1]} do")
    p = h.mpplan(*GPT, "gpt3-13b", "--cluster", "t4-box", "--predict")
    largest = re.search(r"most of it: (.*)", p.stderr)
    if h.check(p.returncode == 2 and largest, "a box is too small: what fills it", p.stderr[-500:]):
        names = [x.split()[0] for x in largest[1].split(", ")]
        h.check(len(names) == 3 and all(re.search(r"^(h\.\d+\.)?(attn|mlp)\.c_\w+\.weight", x) for x in names),
                "a box is too small: the largest are matrices of its layers", largest[1])


for name in h.only(["limits", "whole_time", "infeasible"]):
    h.guarded(name, globals()[f"test_{name}"])
sys.exit(h.finish())
