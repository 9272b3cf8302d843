"""What --profile of a trainer wrote, as the passes of its stages."""
import collections
import json

Pass = collections.namedtuple("Pass", "kind micro_batch begin_s seconds waited_s cpu")


class Trace:
    """Its steps: of each stage the passes of its first rank in order, and the work of its update."""

    def __init__(self, path, n_stages):
        events = json.loads(path.read_text())["traceEvents"]
        self.in_flight = [max(e["args"]["micro-batches"] for e in events if e["ph"] == "C" and e["pid"] == s) for s in range(n_stages)]
        self.steps = []
        spans = [e for e in events if e["ph"] == "X"]
        for name in sorted({e["name"] for e in spans if e["name"].startswith("step ")}):
            first = [min((e for e in spans if e["name"] == name and e["pid"] == s), key=lambda e: e["tid"]) for s in range(n_stages)]
            self.steps.append([self.stage(f, [e for e in spans if e["tid"] == f["tid"]]) for f in first])

    @staticmethod
    def stage(step, events):
        inside = [e for e in events if step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"]]
        passes, waits = [], [e for e in inside if e["name"] == "wait"]

        def waited_in(event):
            return sum(w["dur"] for w in waits if event["ts"] <= w["ts"] < event["ts"] + event["dur"]) / 1e6

        for e in inside:
            if e["name"].split()[0] in ("forward", "backward"):
                passes.append(Pass(e["name"].split()[0], e["args"]["micro_batch"], e["ts"] / 1e6, e["dur"] / 1e6, waited_in(e), e["tdur"] / 1e6))
        passes.sort(key=lambda p: p.begin_s)
        update = sum(e["dur"] / 1e6 - waited_in(e) for e in inside if e["name"] == "update")
        return dict(wall=step["dur"] / 1e6, passes=passes, update=update)


def one_f_one_b(stage, n_stages, n):
    """Its passes in the order of the schedule."""
    warm = min(n_stages - stage - 1, n)
    order = [("forward", m) for m in range(warm)]
    for m in range(n - warm):
        order += [("forward", warm + m), ("backward", m)]
    return order + [("backward", m) for m in range(n - warm, n)]
