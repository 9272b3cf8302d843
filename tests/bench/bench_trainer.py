#!/usr/bin/env python3
"""How fast trainers step: beside PyTorch, beside what the BLAS can do, and two devices beside one.

    tests/bench/bench_trainer.py                          everything, three rounds: about 40 minutes
    tests/bench/bench_trainer.py --cases t64 --rounds 1   one case
    tests/bench/bench_trainer.py --torch python3.12 --json out.json

Plans and builds the trainers itself (MPPLAN, or build/mpplan). All contenders of a case train the same weights on the
same tokens, and their losses must agree. A round runs each of them once, one after the other, after a measurement of
the BLAS at the model's shapes; the first steps of a run do not count. Printed: the median of the rounds' medians,
the least and the largest of them. OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are taken out of the environment.

"matrix" is the share of the measured sgemm peak that the model's matrix products would have if they were all that a
step does; "bound" is the step in which nothing but they happened, each at the best rate measured for its shape.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_machine import (Peak, busy_share, clean_environment, describe_machine, matrix_flops, model_products,
                           torch_contenders, watched)

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
REFERENCE = ROOT / "tests" / "data" / "reference" / "gpt2-tiny"
GPT2 = dict(preset="gpt2", layers=12, hidden=768, heads=12, vocab=50257, positions=1024, lr=6e-4, beta1=0.9, beta2=0.95,
            epsilon=1e-8, weight_decay=0.1, clip_norm=1.0)
TINY = dict(preset="tiny", layers=4, hidden=128, heads=4, vocab=512, positions=64, lr=3e-4, beta1=0.9, beta2=0.999,
            epsilon=1e-8, weight_decay=0.0, clip_norm=0.0, batch=8, seq=64)
CASES = {  # sizes, steps that count, and the goals
    "tiny": dict(TINY, steps=100, skip=10, torch_goal=1.5),
    "t64": dict(GPT2, batch=4, seq=64, steps=6, skip=3, torch_goal=1.5),
    "t256": dict(GPT2, batch=4, seq=256, steps=3, skip=2, matrix_goal=0.80),
}
SCALING = dict(GPT2, batch=8, seq=64, steps=4, skip=1)
BUSY = 0.15  # cores used by others from which on figures judge nothing
SCALING_GOALS = {"threads": 1.8, "MPI": 1.7}


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, Path(folder)
        self.peak = Peak(self.folder, args.make)
        self.results = {"machine": describe_machine(), "openblas": self.peak.library, "cases": {}, "scaling": {}}

    def trainer(self, name, case, *options):
        """Plan CASE and build its trainer."""
        plan = self.folder / name
        sizes = [f"{k}={case[k]}" for k in ("batch", "seq")]
        sizes += ["schedule=constant", "warmup_steps=0"]
        run([MPPLAN, ROOT / "models" / "gpt.xml", "--preset", case["preset"], *(f"-D{s}" for s in sizes), *options, "-o", plan])
        run(["make", "-C", plan, f"RUNTIME_BUILD={self.folder / 'runtime'}", *self.args.make])
        return plan / "trainer"

    def inputs(self, name, case):
        """A file of weights and a folder of tokens that every contender reads."""
        if name == "tiny":
            return REFERENCE / "model.safetensors", REFERENCE
        weights, data = self.folder / "gpt2.safetensors", self.folder / f"{name}-data"
        if not weights.exists():
            run([numpy_python(), ROOT / "tests" / "bench" / "bench_inputs.py", "weights", weights, json.dumps(case)])
        run([numpy_python(), ROOT / "tests" / "bench" / "bench_inputs.py", "tokens", data, json.dumps(case)])
        return weights, data

    def step_times(self, trainer, threads, case, options=(), launcher=()):
        """One run of a trainer: {step_s, loss, others}."""
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        env = clean_environment()
        command = [*launcher, trainer, "--steps", case["steps"] + case["skip"], "--metrics", metrics, *options]
        if "--threads" in run([trainer, "--help"]):
            command += ["--threads", threads]
        else:
            env["OPENBLAS_NUM_THREADS"] = str(threads)
        others = watched(lambda: run(command, env))
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {"step_s": [x["step_s"] for x in lines], "loss": [x["loss"] for x in lines], "others": others}

    def torch_times(self, contender, threads, case, weights, data):
        config = self.folder / "config.json"
        config.write_text(json.dumps(dict(case, weights=str(weights), data=str(data))))
        command = [contender["python"], ROOT / "tests" / "bench" / "torch_gpt.py", "--config", config,
                   "--steps", case["steps"] + case["skip"], "--threads", threads]
        env = dict(clean_environment(), OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads), **contender["env"])
        out = []
        others = watched(lambda: out.append(json.loads(run(command, env).strip().splitlines()[-1])))
        return dict(out[0], others=others)


def numpy_python():
    for exe in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([exe, "-c", "import numpy"], capture_output=True).returncode == 0:
            return exe
    sys.exit("bench_trainer.py needs a python3 with numpy (apt-get install python3-numpy)")


def run(command, env=None):
    p = subprocess.run([str(c) for c in command], env=env or clean_environment(), capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"{' '.join(str(c) for c in command)}\nended with {p.returncode}:\n{p.stderr[-2000:]}")
    return p.stdout


def keep(into, label, result, skip):
    """Add a run to INTO: its median step, and whether others used the machine."""
    middle = statistics.median(result["step_s"][skip:])
    print(f"    {label}: {ms(middle)} ms, others {result['others']:.2f} cores", file=sys.stderr, flush=True)
    into.setdefault("round_s", []).append(middle)
    into.setdefault("others", []).append(round(result["others"], 3))
    into["loss"] = result["loss"]
    for key in ("version", "optimizer", "attention", "libraries"):
        if key in result:
            into[key] = result[key]


def check_losses(name, contenders):
    """The contenders of one case do one computation: 1e-4 at first, more after steps whose rounding AdamW magnifies."""
    first = next(iter(contenders.values()))["loss"]
    for label, c in contenders.items():
        for step, (a, b) in enumerate(zip(first, c["loss"])):
            if abs(a - b) > (1e-4 if step == 0 else 1e-2) * abs(a):
                sys.exit(f"{name}: the loss of {label} at step {step + 1} is {b}, not {a}: not the same computation")


def too_busy(contenders):
    """Whether others used the machine, so that goals are not judged; says so."""
    most = max(x for c in contenders.values() for x in c["others"])
    if most > BUSY:
        print(f"  others used up to {most:.2f} cores meanwhile: these figures judge nothing; run it again when the machine is quiet")
    return most > BUSY


def summary(c):
    return statistics.median(c["round_s"]), min(c["round_s"]), max(c["round_s"])


def ms(seconds):
    return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def row(label, c, extra):
    middle, low, high = summary(c)
    print(f"  {label:42} {ms(middle):>7} {ms(low) + '-' + ms(high):>13}  {extra:44} {max(c['others']):5.2f}", flush=True)


def print_case(name, threads, case, result):
    contenders, peaks = result["contenders"], result["peaks"]
    flops, products = matrix_flops(case), model_products(case)
    square = statistics.median(p["square_flops_per_s"] for p in peaks)
    best = {key: max(p["products"][key] for p in peaks) for key in products}
    bound_s = sum(n * f / best[key] for key, (_, n, f) in products.items())
    shapes = sum(n * f for _, n, f in products.values()) / bound_s
    ours = summary(contenders["mpplan"])[0]
    result.update(matrix_flops=flops, sgemm_flops_per_s=square, shapes_flops_per_s=shapes, bound_s=bound_s)
    print(f"\n{name}: gpt {case['preset']}, B={case['batch']} T={case['seq']}, {threads} thread{'s' * (threads > 1)}; "
          f"core {peaks[0]['core']}, sgemm {square / 1e9:.0f} GFLOP/s (2048 cubed), {shapes / 1e9:.0f} at the model's shapes")
    print(f"  {'':42} {'ms':>7} {'least-most':>13}  {'':44} others")
    for label, c in contenders.items():
        middle = summary(c)[0]
        extra = f"{flops / middle / square:6.1%} matrix"
        if label != "mpplan":
            extra += f"   mpplan is {middle / ours:.2f}x as fast"
        row(label, c, extra)
    print(f"  {'bound: its matrix products and no more':42} {ms(bound_s):>7}")
    result["matrix_share"] = flops / ours / square
    if too_busy(contenders):
        return
    if "matrix_goal" in case:
        met = result["matrix_share"] >= case["matrix_goal"]
        print(f"  goal {case['matrix_goal']:.0%} matrix: {'met' if met else 'not met'}, {result['matrix_share']:.1%}")
    rivals = [summary(c)[0] for label, c in contenders.items() if label != "mpplan"]
    if rivals and "torch_goal" in case:
        result["torch_ratio"], result["torch_ratio_bound"] = min(rivals) / ours, min(rivals) / bound_s
        met = result["torch_ratio"] >= case["torch_goal"]
        print(f"  goal {case['torch_goal']}x the fastest PyTorch: {'met' if met else 'not met'}, {result['torch_ratio']:.2f}x; a step "
              f"of nothing but its matrix products would be {result['torch_ratio_bound']:.2f}x")


def bench_case(bench, name, threads_list, rounds):
    case = CASES[name]
    trainer = bench.trainer(name, case)
    weights, data = bench.inputs(name, case)
    options = ["--init", weights, "--data", f"npy:{data}"]
    rivals = torch_contenders(bench.args.torch)
    results = {t: {"contenders": {}, "peaks": []} for t in threads_list}
    for _ in range(rounds):
        for threads, result in results.items():
            contenders = result["contenders"]
            result["peaks"].append(bench.peak.measure(threads, model_products(case)))
            keep(contenders.setdefault("mpplan", {}), f"{name} mpplan, {threads} threads",
                 bench.step_times(trainer, threads, case, options), case["skip"])
            for rival in rivals:
                keep(contenders.setdefault(rival["label"], {}), f"{name} {rival['label']}, {threads} threads",
                     bench.torch_times(rival, threads, case, weights, data), case["skip"])
    for threads, result in results.items():
        check_losses(name, result["contenders"])
        print_case(name, threads, case, result)
    bench.results["cases"][name] = {str(t): r for t, r in results.items()}


def bench_scaling(bench, rounds):
    """Two devices of one thread each beside one, over threads and under MPI; and what two sgemm at once make."""
    case, two = SCALING, ["--gpus", "2"]
    trainers = {"1 device": bench.trainer("one", case), "2 devices, planned": bench.trainer("two", case, *two),
                "2 devices, dp=2": bench.trainer("two-dp", case, *two, "--fix", "dp=2"),
                "2 devices, dp=2 zero=0": bench.trainer("two-dp0", case, *two, "--fix", "dp=2,zero=0")}
    mpirun = ["mpirun", "-n", "2"] if not bench.args.no_mpi else None
    contenders, pairs = {}, []
    for _ in range(rounds):
        pairs.append(bench.peak.measure_pair(model_products(case)))
        for label, trainer in trainers.items():
            for over, launcher in (("threads", []), ("MPI", mpirun)):
                if launcher is None or (label == "1 device" and over == "MPI"):
                    continue
                name = label if label == "1 device" else f"{label}, {over}"
                keep(contenders.setdefault(name, {}), name,
                     bench.step_times(trainer, 1, case, ["--data", "synthetic"], launcher), case["skip"])
    check_losses("scaling", contenders)
    one = summary(contenders["1 device"])[0]
    pair = statistics.median(pairs)
    print(f"\nscaling: gpt2, B={case['batch']} T={case['seq']}, one thread a device; two sgemm at once make {pair:.2f}x what one makes")
    for label, c in contenders.items():
        row(label, c, "" if label == "1 device" else f"{one / summary(c)[0]:5.2f}x")
    bench.results["scaling"] = {"contenders": contenders, "two_sgemm": pairs}
    if too_busy(contenders):
        return
    for over, goal in SCALING_GOALS.items():
        reached = [one / summary(c)[0] for label, c in contenders.items() if label == f"2 devices, planned, {over}"]
        if reached:
            print(f"  goal {goal}x over {over}, as planned: {'met' if reached[0] >= goal else 'not met'}, {reached[0]:.2f}x")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default="tiny,t64,t256,scaling", help=f"of {', '.join(CASES)}, scaling")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--torch", action="append", help="a Python that has torch; several times; default: those found; none")
    parser.add_argument("--make", action="append", default=[], metavar="NAME=VALUE", help="for the trainers' make")
    parser.add_argument("--no-mpi", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round of one counted step: does it all run")
    parser.add_argument("--json", help="write all figures there")
    args = parser.parse_args()
    args.cases = args.cases.split(",")
    for name in args.cases:
        if name not in CASES and name != "scaling":
            parser.error(f"there is no case {name}; there are {', '.join(CASES)} and scaling")
    try:
        args.threads = [int(t) for t in args.threads.split(",")]
    except ValueError:
        parser.error("--threads takes numbers, as in 1,2")
    if args.quick:
        args.rounds = 1
        for case in (*CASES.values(), SCALING):
            case.update(steps=1, skip=1)
    if args.rounds < 1 or min(args.threads) < 1:
        parser.error("--rounds and --threads count from 1")
    return args


def main():
    args = parse()
    with tempfile.TemporaryDirectory(prefix="mpp_bench_") as folder:
        bench = Bench(args, folder)
        print(f"{bench.results['machine']}; {bench.peak.library}; others used {busy_share(1.0):.2f} cores just now")
        for name in args.cases:
            if name == "scaling":
                bench_scaling(bench, args.rounds)
            else:
                bench_case(bench, name, args.threads, args.rounds)
        if args.json:
            Path(args.json).write_text(json.dumps(bench.results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
