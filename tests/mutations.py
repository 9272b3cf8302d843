"""The mutations of mutate.py: mistakes that somebody could make, few of them loud.

Each is a name, a file, a text that stands there once, what it becomes, what breaks, and the suites of which at least one
should notice: unit tests, or end-to-end suites ("equivalence:2x2" runs the parts with that word in their name). The
table of docs/testing.md lists the same names.
"""
from collections import namedtuple

Mutation = namedtuple("Mutation", "name file old new what suites")
MUTATIONS = []


def m(name, file, old, new, what, *suites):
    MUTATIONS.append(Mutation(name, file, old, new, what, suites))


# ---- ir: shapes, rules, gradients, the update ----

m("broadcast-lead", "ir/grad.c",
  "!is_one(t.dims[d + lead])", "!is_one(t.dims[d])",
  "a broadcast operand's gradient is summed over the wrong dimension when the result has more dimensions", "ops")
m("div-gradient", "ir/grad.c",
  "t = mpp_gradient_op2(&b, MPP_OP_MUL, t, mpp_gradient_y(in, 0), none);",
  "t = mpp_gradient_op2(&b, MPP_OP_MUL, t, mpp_gradient_x(in, 0), none);",
  "the divisor's gradient is -dy/b a instead of -dy/b y", "ops")
m("step-tie", "ir/ops.def",
  "(a > b ? 1.0f : a == b ? 0.5f : 0.0f)", "(a >= b ? 1.0f : 0.0f)",
  "emitted gradients of Min and Max count equal operands twice", "ops")
m("tied-first", "ir/autodiff.c",
  "w->first[op->in[k]] = o;", "w->first[op->in[k]] = w->first[op->in[k]] < 0 ? o : w->first[op->in[k]];",
  "the gradient of a value used twice is finished after its first contribution", "autodiff")
m("same-operand", "ir/autodiff.c",
  "again = again || g->ops[o].in[j] == t;", "again = again && g->ops[o].in[j] == t;",
  "an op that reads a parameter twice finishes its gradient twice", "autodiff")
m("decay-1d", "ir/optimizer.c",
  "info->n_published <= 1 &&", "info->n_published < 1 &&",
  "biases and norms are decayed like matrices", "equivalence:gpt2-tiny C, 1 device")
m("additive-mix", "ir/additive.c",
  "bool adds = n_terms == n_given && batch == -1;", "bool adds = batch == -1;",
  "a sum over samples plus a constant passes as one that micro-batches may add up", "graph")
m("partial-outputs", "ir/sharding.c",
  "else if (operand >= rule->n_in && rule", "else if (operand == rule->n_in && rule",
  "only a rule's first output is a partial sum (LayerNorm's weight gradients are not reduced)", "ops")
m("row-shard-mean", "ir/ref_rows.c",
  "sums[2 * row] += g / r.global;", "sums[2 * row] += g / (double)r.cols;",
  "LayerNorm's gradient takes the mean over the rank's part of a row", "ops")
m("uneven-reshape", "ir/rule.c",
  "return k <= f->size.size && (!f->even_only || f->size.size % k == 0);", "return k <= f->size.size;",
  "dimensions that a reshape merges may be cut unevenly", "ops", "groups", "graph")
m("expand-lead", "ir/shape_layout.c",
  "mpp_size_is_one(t->dims[d]) ? -1 : factor[n - t->n_dims + d];", "mpp_size_is_one(t->dims[d]) ? -1 : factor[d];",
  "Expand aligns dimensions at the left", "graph", "ops", "autodiff")
m("verify-order", "ir/verify.c",
  "if (t->op >= o)", "if (t->op > o)",
  "the verifier lets an op read its own output", "graph")
m("span-tied", "ir/span.c",
  "if (sum->in[k] >= 0 && made_here(s, sum->in[k]))", "if (sum->in[k] >= 0 && made_here(s, sum->in[0]))",
  "a stage that has not the last term of a tied parameter's gradient does not sum its own", "span")
m("span-norm", "ir/span.c",
  "if (n_here == n_given || (n_here > 0 && is_sum(op)))", "if (n_here == n_given)",
  "a stage without all parameters has no gradient norm, and so no update", "span")
m("span-batch", "ir/span.c",
  "follows = follows || rule->factor[f].size.per_batch;", "follows = follows && rule->factor[f].size.per_batch;",
  "spans share index rules with the whole graph, and change with its batch", "span")
m("recompute-kernel", "ir/recompute.c",
  "if (u != own && !unit->kernel)", "if (u != own)",
  "selective recomputation keeps the result of the attention kernel that it runs again", "span")
m("recompute-head", "ir/layering.c",
  "if (l->repeats ? op_at(l, i)->repeat >= 0 : !has_loss)", "if (!has_loss)",
  "full recomputation runs an embedding's norm again", "span")
m("class-stream", "ir/layering_class.c",
  'if (strcmp(a->name, "stream") == 0)', 'if (strcmp(a->name, "seed") == 0)',
  "layers with dropout are never alike", "span")
m("class-distance", "ir/layering_class.c",
  "put(t, is_near ? other - layer : other);", "put(t, is_near);",
  "layers that read their last but one neighbour pass as like those that read their last", "span")
m("layer-place", "ir/layering.c",
  "l->cut_bytes[i] <= l->cut_bytes[place]", "l->cut_bytes[i] < l->cut_bytes[place]",
  "layers are cut right after a product, before its bias", "span")
m("masked-gradient", "ir/grad_kernels.c",
  'mpp_attr_float("scale", mpp_attrs_float(&own, "scale", 1)), mpp_attr_float("fill", 0));',
  'mpp_attr_float("scale", 1), mpp_attr_float("fill", 0));',
  "attention in parts: the gradient of the scores is not scaled", "ops")

# ---- costmodel ----

m("ring-share", "costmodel/collective.c",
  "(n - 1) / n * bytes / slowest(g, p, rate));", "bytes / slowest(g, p, rate));",
  "a ring moves the whole buffer instead of (n-1)/n of it", "costmodel")
m("ring-steps", "costmodel/collective.c",
  "passes * ((n - nodes) * p->step_s", "passes * (n * p->step_s",
  "a ring over nodes counts n steps inside them", "costmodel")
m("shared-links", "costmodel/collective.c",
  "least(c->link_bytes_per_s, c->total_bytes_per_s / use->devices);", "least(c->link_bytes_per_s, c->total_bytes_per_s / run->n);",
  "groups that communicate at the same time don't share a node's total bandwidth", "costmodel")
m("shared-nics", "costmodel/collective.c",
  "c->nics * c->nic_bytes_per_s / use->crossing);", "c->nics * c->nic_bytes_per_s);",
  "groups that cross nodes at the same time don't share the NICs", "costmodel")
m("gemm-traffic", "costmodel/kernel.c",
  "b * (dm * dk + dk * dn + dm * dn) * sizes[precision]", "b * (dm * dk + dk * dn) * sizes[precision]",
  "the output of a product costs no memory traffic", "costmodel")
m("whole-waves", "costmodel/kernel.c",
  "if (whole < waves)\n            whole += 1;", "",
  "a last wave that is not full costs nothing", "costmodel")
m("one-tile", "costmodel/kernel.c",
  "if (i == 0 || s < best)", "if (i == 0)",
  "small products are cut into the largest tiles", "costmodel")
m("sum-aligned", "costmodel/kernel.c",
  "(k > 1 ? k : 0)", "(k > 1 ? m : 0)",
  "the alignment of a product's summed dimension does not count", "costmodel")
m("tree-depth", "costmodel/collective.c",
  "log2_up(g->nodes) * p->network_step_s +", "(g->nodes - 1) * p->network_step_s +",
  "a tree over nodes takes as many steps as a ring", "costmodel")
m("sharp-traffic", "costmodel/collective.c",
  "between *= 2;", "",
  "a tree between nodes carries what a reducing network would", "costmodel")
m("repeated-ring", "costmodel/rings.c",
  "pack(s, c, taken + 1 + both, both);", "pack(s, c + 1, taken + 1 + both, both);",
  "a ring may not be built twice over double links", "costmodel")

# ---- planner ----

m("scatter-bytes", "planner/reshard.c",
  "a > b ? a : b, 0};", "b, 0};",
  "a reduce-scatter is priced by what is left of the buffer", "planner")
m("nested-cut", "planner/reshard.c",
  "if (there >= (mask & -mask))", "if (there & mask)",
  "an axis may cut a dimension outside of one that cuts it already", "planner")
m("gather-inner", "planner/reshard.c",
  "return (mpp_sharding_mask(s, dim) & ~mask) >= (mask & -mask) ? -1 : dim;", "return dim;",
  "an outer axis may be gathered before the inner one", "planner")
m("life-short", "planner/problem.c",
  "{groups[i], last_use(b, id, groups[i]), t->bytes[i][o], id + 1}", "{groups[i], groups[i], t->bytes[i][o], id + 1}",
  "values take memory only while they are made", "planner", "planner_exhaustive")
m("internal-once", "planner/problem.c",
  "c->cost[k] += times * internal;", "c->cost[k] += internal;",
  "collectives inside kernels are paid once, not per micro-batch", "planner", "planner_exhaustive")
m("convert-once", "planner/problem_value.c",
  "MPP_SOLVER_FORBIDDEN : once * d->times;", "MPP_SOLVER_FORBIDDEN : once;",
  "copies are paid once, not per micro-batch", "planner")
m("kept-bytes", "planner/problem.c",
  "if (s != g)\n        c->bytes[k] += mpp_sharding_bytes(x, mesh, c->gather[k]);", "",
  "a parameter kept whole for the step takes no memory", "planner", "planner_exhaustive")
m("dominance-memory", "planner/solver.c",
  "mpp_solver_dominance(s, s->n_rows > 0)", "mpp_solver_dominance(s, false)",
  "a cheap choice rules out a smaller one where memory binds", "solver")
m("dominance-usage", "planner/solver_reduce.c",
  "with_memory && u < n->n_usages; u++", "with_memory && u < n->n_usages && u < 1; u++",
  "dominance looks only at a node's first tensor", "solver")
m("row-touch", "planner/solver_reduce.c",
  "while (seen < n && start[seen] <= end[e])", "while (seen < n && start[seen] < end[e])",
  "a life that begins when another ends is not seen beside it", "solver")
m("bound-high", "planner/solver_price.c",
  "int64_t cost, b = ev->value - mpp_solver_capacity_value(s, d->price);", "int64_t cost, b = ev->value;",
  "the priced bound forgets what the capacity is worth: it is too high", "solver")
m("branch-count", "solver/branch.c",
  "t->n_class - (int64_t)floor(s->count) - 1);", "t->n_class - (int64_t)floor(s->count) - 2);",
  "of two branches on 12.4 layers one holds at most 12, the other at least 14", "branch")
m("mixture-rows", "solver/master.c",
  "if (!add_rows(r))", "if (!add_rows(r) || round >= 0)",
  "times at which the mixture does not fit are not looked at", "branch")
m("copy-each", "planner/solver.c",
  "            if (mark[t] == i + 1)\n                continue;\n            mark[t] = i + 1;\n",
  "            if (t == made)\n                continue;\n            mark[t] = i + 1;\n",
  "consumers that want the same copy pay for one each", "solver")
m("pipeline-cut", "planner/pipeline.c",
  "        high.t_from = low.t_to + 1;", "        high.t_from = t;",
  "an interval of longest times loses its middle when it is cut", "pipeline")
m("pipeline-bound", "planner/pipeline.c",
  "bound = mpp_pipe_bound(q, plan->sum_ps, b.t_from, b.once_from);",
  "bound = mpp_pipe_bound(q, plan->sum_ps, plan->longest_ps, b.once_from);",
  "a bound takes the longest stage of the plan that was found for the shortest that may be", "pipeline")
m("pipeline-exact", "planner/pipeline.c",
  "if (!plan->exact[i])", "if (!plan->exact[0])",
  "a plan passes for exact when its first stage is", "pipeline")
m("pipeline-once", "planner/pipeline_pass.c",
  "once = most(x->least_once_ps, q->once[rest]);", "once = most(x->once_ps, q->once[rest]);",
  "the fastest option's work per step passes for the least there is", "pipeline")
m("pipeline-promise", "planner/pipeline_pass.c",
  "if (!x && q->p->longer_is_worse)", "if (!x)",
  "spans longer than one that does not fit are never asked for", "pipeline")
m("pipeline-row", "planner/pipeline.c",
  "f->row[r] = f->windows ? r - 1 : row;", "f->row[r] = f->windows ? r - 1 : 0;",
  "stages with more in flight are taken for those with less", "pipeline")
m("schedule-warm-up", "planner/schedule.c",
  "w = 2 * after +", "w = after +",
  "interleaved stages warm up with as many chunks as 1F1B with micro-batches", "pipeline")
m("schedule-turn", "planner/schedule.c",
  "if (e->chunk < r->s->chunks - 1)", "if (e->chunk < 0)",
  "a chunk's backward does not wait for the next chunk's", "pipeline")
m("schedule-barrier", "planner/schedule.c",
  "barrier = most(barrier, r->free_at[i]);", "barrier = r->free_at[i];",
  "updates wait for the last stage's reductions only", "pipeline")
m("front-weights", "planner/front.c",
  "    if (most > 1)  ", "    if (most < 0)  ",
  "a stage that is not the longest trades time per micro-batch as if it were", "stages")
m("finalist-formula", "planner/finalists.c",
  "return a->simulated_ps != b->simulated_ps ? a->simulated_ps < b->simulated_ps : a->answer.time_ps < b->answer.time_ps;",
  "return a->answer.time_ps < b->answer.time_ps;",
  "the formula decides between finalists, not the simulation", "twolevel")
m("zero-level", "planner/pins_rules.c",
  "if (r->pins->zero < (sum ? 2 : 1))", "if (r->pins->zero < 1)",
  "zero=1 scatters gradients as zero=2 does", "plans:memory")
m("zero-rest", "planner/pins_rules.c",
  "if (r->pins->zero < 3)", "if (r->pins->zero < 2)",
  "zero=2 splits parameters as zero=3 does", "planner", "equivalence:zero 2")
m("plan-kept", "planner/plan_json_record.c",
  "= kept && json_is_true(kept) && t->role == MPP_ROLE_PARAM;", "= false;",
  "a plan that is read forgets which parameters are kept whole", "plan", "plans:determinism")

# ---- codegen ----

m("first-axis", "codegen/emit_comm.c",
  "%lld, MPP_REDUCE_SUM);\", mpp_emit_mask(e, in->step->mask), y, count);",
  "%lld, MPP_REDUCE_SUM);\", mpp_emit_mask(e, in->step->mask & -in->step->mask), y, count);",
  "an all-reduce over two axes runs over one of them", "equivalence:2x2", "emit")
m("merge-uneven", "codegen/emit_einsum.c",
  "for (int i = 1; i < l->n; i++)\n        if (mpp_emit_uneven(", "for (int i = 2; i < l->n; i++)\n        if (mpp_emit_uneven(",
  "two dimensions become one of a product although the inner is cut unevenly", "plans:uneven", "emit")
m("epilogue-shared", "codegen/epilogue.c",
  "uses[product].n != 2", "uses[product].n < 2",
  "a product that others read as well is nowhere once a residual follows it", "emit")
m("epilogue-exact", "codegen/epilogue.c",
  "mpp_attrs_string(&op->attrs, \"approximate\", \"none\"), \"tanh\") == 0", "mpp_attrs_string(&op->attrs, \"approximate\", \"none\"), \"\") != 0",
  "exact GELU that follows a product becomes its tanh form", "emit")
m("space-padded", "codegen/emit_ops.c",
  "mpp_text_add(&valid, \"%s%s\", d ? \", \" : \"\", mpp_emit_valid(e, size_of(e, b, d), b->split[d]));",
  "mpp_text_add(&valid, \"%s%lld\", d ? \", \" : \"\", (long long)b->padded[d]);",
  "row kernels run over the padding of uneven blocks", "equivalence:7 devices", "emit")
m("position-offset", "codegen/emit_ops.c",
  "return rows->split[0] ? mpp_arena_printf", "return rows->split[0] > 1 ? mpp_arena_printf",
  "positions split over the first axis all begin at 0", "plans:uneven")
m("loss-reduce", "codegen/emit_ops.c",
  "    if (!mask)\n        return;\n", "    if (mask)\n        return;\n",
  "the loss is not summed over the ranks that split the vocabulary", "equivalence:vocabulary", "emit")
m("ignore-zero", "codegen/emit_ops.c",
  "(long long)a->i) : \"INT32_MIN\";", "(long long)a->i) : \"0\";",
  "without an ignore_index the label 0 is ignored", "equivalence:gpt2-tiny A, 1 device", "emit")
m("accum-life", "codegen/memory.c",
  "if (used && micro_batches > 1 && buf->kind == MPP_BUF_ACCUM)", "if (used && micro_batches > 2 && buf->kind == MPP_BUF_ACCUM)",
  "sums over two micro-batches lose their memory between them", "lower", "emit")
m("overlap-edge", "codegen/memory.c",
  "return a.first <= b.last && b.first <= a.last && a.first", "return a.first < b.last && b.first < a.last && a.first",
  "a result may take the memory of an operand that dies with it", "lower", "emit")
m("prefetch-await", "codegen/prefetch.c",
  "int after = w->n - 1 - at;", "int after = w->n - at;",
  "a gather that is awaited may still be under way", "lower", "transfers")
m("prefetch-end", "codegen/prefetch.c",
  "if (!c || last)", "if (!c || !last)",
  "in the last layer as many gathers are under way as in others", "lower")
m("workspace-clobber", "codegen/memory.c",
  "int64_t at = base + workspace_during(m, b);", "int64_t at = base;",
  "values may lie in the workspace of kernels that run while they live", "lower", "emit")
m("once-life", "codegen/memory.c",
  "if (in->once) {           /* kept", "if (in->once && layer < 0) { /* kept",
  "gathered weights of layers are not kept for all micro-batches", "plans:micro")
m("tied-start", "codegen/lower.c",
  "l->producer[t] < l->producer[acc->in[earliest]]", "l->producer[t] > l->producer[acc->in[earliest]]",
  "of two uses of a tied weight the second overwrites the gradient of the first", "lower", "equivalence:gpt2-tiny A, 1 device")
m("reduced-early", "codegen/lower_copy.c",
  "bool alone = !read_later(l, c, -1);", "bool alone = true;",
  "a gradient that is wanted in two forms is summed for one before the other reads it", "lower")
m("accum-form", "codegen/lower.c",
  "f->instr.in[0].buffer = mpp_lower_find(l, t, acc->phase, mpp_lower_wanted(l, a, i));", "f->instr.in[0].buffer = l->home[t];",
  "a sum over micro-batches adds the gradient as it was made, not as it was converted", "lower", "equivalence:2x2")
m("tied-alone", "codegen/lower_transfer.c",
  "f->instr.mode[0] = MPP_WRITE_ADD;", "f->instr.mode[0] = MPP_WRITE;",
  "of a weight that two stages have the gradient is what the later stage sends", "transfers")
m("tied-norm", "codegen/lower_transfer.c",
  "if (line->adds && line->from == l->number && line->from_tensor == grp->in[0])", "if (line->adds && line->to == l->number && line->to_tensor == grp->in[0])",
  "the gradient norm counts a tied weight where its sum is not yet, or not at all", "transfers")
m("slots-last", "codegen/memory.c",
  "buffers[b].slots = m->prog->slots[m->life[b].chunk];", "buffers[b].slots = m->prog->slots[m->life[b].chunk] - 1;",
  "one micro-batch too few has a place for what backward reads", "transfers")
m("ring-early", "codegen/memory.c",
  "widen(&ring->span[0], time, m->n_times - 1);", "widen(&ring->span[0], time, time);",
  "a gradient on its way to another stage is overwritten by the update", "transfers")
m("arrive-outer", "codegen/transfers.c",
  "if ((there & ~outer) || ", "if (",
  "a part of what arrives is gathered over axes that lie outside of others", "transfers")
m("first-layer", "codegen/emit_stage.c",
  "\"for (int i = %d; i >= 0; i--)\"", "\"for (int i = %d; i > 0; i--)\"",
  "the backward loop leaves out the first layer", "equivalence:gpt2-tiny A, 1 device")
m("layer-streams", "codegen/emit_ops.c",
  "mpp_attrs_int(&op->attrs, \"stream\", 0), in->stream_step));", "mpp_attrs_int(&op->attrs, \"stream\", 0), 0 * in->stream_step));",
  "attention drops the same elements in every layer of a loop", "emit")
m("slot-place", "codegen/emit_tables.c",
  "return b->slots > 1 ? mpp_arena_printf", "return b->slots > 2 ? mpp_arena_printf",
  "two micro-batches in flight share one place", "pipelines:deep, 2 devices, pp=2,schedule=1f1b,micro_batches=2")
m("slot-input", "codegen/emit_tensors.c",
  "b->kind == MPP_BUF_INPUT && b->slots > 1", "b->kind == MPP_BUF_INPUT && b->slots > 99",
  "inputs are put in the first micro-batch's place only", "pipelines:deep, 2 devices, pp=2,schedule=1f1b,micro_batches=2")
m("schedule-lag", "codegen/emit_schedule.c",
  "index, (long long)lag);", "index, (long long)lag - 1);",
  "a backward pass is emitted one micro-batch too early", "emit_pipeline")
m("transfer-split", "codegen/emit_transfer.c",
  ".mesh, line->from_split, line->n_dims);", ".mesh, line->to_split, line->n_dims);",
  "a stage is said to send as the next one splits", "pipelines:deep, 8 devices, pp=2,dp=2,tp=2")

# ---- report.html ----

m("report-escape", "codegen/report_html_json.c",
  "strchr(\"\\\"\\\\<>&'\", *s)", "strchr(\"\\\"\\\\>&'\", *s)",
  "a model's name can end the element that the page's data stands in", "report_html:names")
m("report-period", "codegen/report_html_time.c",
  "&& b->begin_ps - a->begin_ps == period_ps && ", "&& (b->begin_ps - a->begin_ps == period_ps || period_ps > 0) && ",
  "micro-batches that are not in step are drawn as if they were", "report_html:stages")
m("report-once", "planner/timeline.c",
  "if (!once && phase != MPP_PHASE_UPDATE)", "if ((!once || phase == MPP_PHASE_FORWARD) && phase != MPP_PHASE_UPDATE)",
  "a weight that is gathered once per step counts for each micro-batch", "report_html:stages")
m("report-tree", "codegen/report/tree.js",
  "node.ps += c.ps * (c.layers || 1);", "node.ps += c.ps;",
  "layers that are alike count once in the tree's times", "report_html:tiny")
m("report-source", "costmodel/figures.c",
  "source = own ? own : source;", "source = own;",
  "a figure inside an element that has a source seems to have none", "report_html:mesh")

m("account-once", "inspect/account.c",
  "int64_t times = once ? 1 : m->plan->micro_batches;", "int64_t times = m->plan->micro_batches;",
  "what happens once per step counts for each micro-batch in --diff", "inspect:diff")
m("pin-rest", "planner/pins_rules.c",
  "(resting || r->shard[i].kind == MPP_PIN_SHARD)", "(resting || r->shard[i].kind != MPP_PIN_SPLIT)",
  "rest: binds how a weight is read, too", "inspect:pins")
m("explain-costs", "inspect/explain_costs.c",
  ".step_ps = plan->objective_ps", ".step_ps = e->plan->objective_ps",
  "every alternative seems to take what the plan takes", "inspect:explain_ops")

# ---- runtime ----

m("gelu-slope", "runtime/mpp_math.h",
  "float slope = MPP_FMAF(0.214064449f, s, 1.59576912f);", "float slope = MPP_FMAF(0.0713548163f, s, 1.59576912f);",
  "GELU's gradient takes the cubic term as if it were linear", "runtime_kernels")
m("causal-offset", "runtime/host/kernels_attention.c",
  "a->seq_q.offset + i + 1 - a->seq_k.offset", "i + 1 - a->seq_k.offset",
  "causal attention on a part of the sequence counts queries from its own first", "runtime_attention")
m("attention-dk", "runtime/host/kernels_attention.c",
  "mpp_sgemm(true, false, nk, hd, nq, a->scale, dp,", "mpp_sgemm(true, false, nk, hd, nq, 1.0f, dp,",
  "the keys' gradient lacks the scale", "runtime_attention")
m("dropout-head", "runtime/host/kernels_attention.c",
  "(uint64_t)(a->heads.offset + h->head);", "(uint64_t)h->head;",
  "dropout in attention numbers heads within the rank", "runtime_attention", "quickstart:dropout")
m("dropout-micro", "runtime/host/kernels_attention.c",
  "(uint64_t)(mpp_first_sample(h->r) + a->batch.offset + h->batch);", "(uint64_t)(a->batch.offset + h->batch);",
  "every micro-batch drops the same elements in attention", "runtime_attention", "quickstart:dropout")
m("softmax-padding", "runtime/host/kernels_norm.c",
  "max[i] = mpp_row_max(x + (base + i) * stride, cols.valid);", "max[i] = mpp_row_max(x + (base + i) * stride, cols.padded);",
  "a split softmax looks at the padding for its maximum", "runtime_kernels")
m("norm-shard", "runtime/host/kernels_norm.c",
  "double n = (double)cols.global;", "double n = (double)cols.valid;",
  "a split LayerNorm divides by the rank's part of a row", "runtime_kernels")
m("ignored-rows", "runtime/host/kernels_loss.c",
  "memset(dx, 0, (size_t)cols.valid * sizeof *dx);", "memset(dx, 0, (size_t)cols.valid);",
  "of an ignored row's gradient only a quarter is cleared", "runtime_kernels")
m("small-table", "runtime/host/kernels_loss.c",
  "(float)((double)dtable[id * width + base + i] + sum[id][i]);", "(float)sum[id][i];",
  "a small table's gradient forgets what was added before", "runtime_kernels")
m("table-cleared", "runtime/host/kernels_loss.c",
  "    if (beta == 0.0f) {\n        MPP_PARALLEL(r, vocab.padded * width)", "    if (beta >= 0.0f) {\n        MPP_PARALLEL(r, vocab.padded * width)",
  "an embedding's gradient is cleared in each micro-batch", "runtime_kernels")
m("adamw-epsilon", "runtime/host/kernels_optimizer.c",
  "step * m1 / MPP_FMAF(sqrtf(v1), root, epsilon);", "step * m1 / (root * (sqrtf(v1) + epsilon));",
  "AdamW's epsilon is bias-corrected with the root", "runtime_kernels")
m("clip-square", "runtime/host/kernels_optimizer.c",
  "*scale = limit > 0 && n > limit ?", "*scale = limit > 0 && (double)*square_sum > limit ?",
  "the square of the norm is compared with the clipping limit", "runtime_kernels")
m("einsum-uneven", "runtime/core/contraction.c",
  "if (outer->tensors != inner->tensors || inner->extent != inner->padded)", "if (outer->tensors != inner->tensors)",
  "a general product walks two dimensions as one although the inner has padding", "runtime_kernels")
m("einsum-keep", "runtime/host/kernels_gemm.c",
  "keep = 1.0f;", "keep = o->beta;",
  "a general product summed by several calls keeps the last", "runtime_kernels")
m("bias-block", "runtime/host/kernels_gemm.c",
  "p->bias + j : NULL;\n    for (int64_t i = from; i < to; i++) {\n        float *c", "p->bias : NULL;\n    for (int64_t i = from; i < to; i++) {\n        float *c",
  "where threads share a product that GELU follows, each block takes the bias of the first", "runtime_threads")
m("partial-axis", "runtime/host/collectives.c",
  "if (mpp_mesh_group_index(r, mask) == 0)", "if (r->coord[0] == 0)",
  "which rank holds a sum's one term is told by the first axis alone", "runtime_collectives")
m("group-order", "runtime/core/mesh.c",
  "    int index = 0;\n    for (int a = 0; a < r->n_axes; a++)", "    int index = 0;\n    for (int a = r->n_axes - 1; a >= 0; a--)",
  "blocks of two axes are gathered in the wrong order", "runtime_collectives")
m("reduce-tail", "runtime/core/transport_threads.c",
  "int64_t end = begin + share < count ? begin + share : count;", "int64_t end = begin + share < count ? begin + share : count / LANE * LANE;",
  "the last elements of an all-reduce are not summed", "runtime_collectives")
m("mpi-max", "runtime/core/transport_mpi.c",
  "maximum ? MPI_MAX : MPI_SUM", "maximum ? MPI_SUM : MPI_SUM",
  "over MPI a maximum is a sum", "runtime_mpi")
m("packed-spread", "runtime/core/packed.c",
  "for (int64_t o = cut->outer - 1; o > 0; o--)", "for (int64_t o = 1; o < cut->outer; o++)",
  "over MPI the rows of an uneven reduce-scatter are spread from the first on, over each other", "runtime_mpi")
m("backward-inputs", "runtime/core/passes.c",
  "if (local->placed != micro_batch)", "if (forward && local->placed != micro_batch)",
  "a backward pass reads the inputs of the micro-batch that went forward last", "runtime_pipeline")
m("chunk-state", "runtime/core/passes.c",
  "before += r->stage->chunks[c].slots;", "before += r->stage->chunks[c].slots - 1;",
  "the last slot of a chunk and the first of the next are one", "runtime_pipeline")
m("transfer-replica", "runtime/core/transfers.c",
  "receiver % mpp_mesh_group_size(sender, alike)", "0",
  "of senders with the same block the first sends to all", "runtime_transfers")
m("transfer-padding", "runtime/core/transfers.c",
  "part->n[d] != part->from_dims[d] || part->n[d] != part->to_dims[d]", "part->n[d] != part->from_dims[d]",
  "rows are copied as one stretch although the receiver's have padding", "runtime_transfers")
m("stage-sum", "runtime/host/stages.c",
  "own < count && r->rank == r->stage->first_rank", "own < count",
  "in a sum over stages each rank of a stage counts", "runtime_transfers")
m("ring-readers", "runtime/core/flows.c",
  "q->n_parts, memory_order_relaxed", "q->n_parts > 0, memory_order_relaxed",
  "a place of a ring is free once one of its receivers has read it", "runtime_transfers")
m("eval-dropout", "runtime/core/evaluate.c",
  "r->training = false;", "r->training = true;",
  "dropout goes on in evaluations", "evaluation")
m("eval-axes", "codegen/emit_tables.c",
  "*axes_out |= sum ? in->step->mask : 0;", "*axes_out |= 0;",
  "the loss on other data is that of the first rank's samples", "evaluation")
m("resume-data", "runtime/core/feed.c",
  "mpp_data_fill(f->data, f->r, step, m, i, at, error)", "mpp_data_fill(f->data, f->r, step - f->first, m, i, at, error)",
  "a resumed run reads its samples from the first on", "runtime_trainer")
m("prologue-inputs", "runtime/core/passes.c",
  "if (local->placed != micro_batch)", "if (local->placed < 0)",
  "after counting labels every micro-batch trains on the last one's inputs", "runtime_trainer", "plans:micro")
m("warmup", "runtime/core/trainer.c",
  "return peak * t / w;", "return peak * (t - 1) / w;",
  "the warm-up begins with a step at rate 0", "runtime_trainer")
m("decay-span", "runtime/core/trainer.c",
  "(t - w) / (n - w)", "(t - w) / n",
  "the learning rate decays over all steps, not those after the warm-up", "runtime_trainer")
m("resume-seed", "runtime/core/start.c",
  "job->seed = found->seed;", "job->seed = job->options->seed;",
  "a resumed run takes the default seed, not the checkpoint's", "quickstart:checkpoints")
m("resume-sample", "runtime/core/start.c",
  "found->samples >= 0 ? found->samples : found->step * batch;", "found->step * job->program->batch;",
  "a run resumed with another batch skips samples or sees them again", "resume:differences")
m("checkpoint-owner", "runtime/core/tensors.c",
  "(splits >> a & 1) && r->coord[a] != 0)", "(splits >> a & 1) && r->rank != 0)",
  "of tensors split over one of two axes only rank 0 saves its block", "runtime_trainer", "quickstart:checkpoints")
m("init-lane", "runtime/core/init.c",
  "for (int64_t lane = element % 4;", "for (int64_t lane = 0;",
  "initial weights of a block that begins inside a group of four differ", "runtime_trainer")
m("window-last", "runtime/core/tokens.c",
  "tokens->places += s->count - length + 1;", "tokens->places += s->count - length;",
  "no sample ends with a shard's last token", "runtime_files")
m("window-shard", "runtime/core/tokens.c",
  "if (tokens->shards[mid].first_place <= (int64_t)place)", "if (tokens->shards[mid].first_place < (int64_t)place)",
  "the sample at the beginning of a shard is read past the end of the one before", "runtime_files")
m("metrics-resumed", "runtime/core/progress.c",
  "|| step > last_step)", "|| step >= last_step)",
  "resuming drops the metrics of the last step before", "runtime_trainer", "quickstart:checkpoints")
m("mask-position", "runtime/core/data.c",
  "(uint64_t)(s->position + i), s->sample, random);\n        bool chosen", "(uint64_t)i, s->sample, random);\n        bool chosen",
  "which tokens are masked is told by the place in the rank's part of the sequence", "runtime_files")
m("pack-unaligned", "runtime/cuda/launch.cuh",
  "return all == 0;", "return all < 64;",
  "kernels walk arrays in packs that do not begin at a multiple of a pack", "cuda_conformance")
m("mma-barrier", "runtime/cuda/kernels_attention_mma.cu",
  "        __syncthreads();\n        begin_tile<DIM, STEP>(k_rows, k0 + STEP, k_tile);", "        begin_tile<DIM, STEP>(k_rows, k0 + STEP, k_tile);",
  "on tensor cores the next keys come while some warps still multiply the last", "cuda_attention_mma_forward")
m("mma-copies", "runtime/cuda/kernels_attention_mma.cu",
  "    mpp_copies_wait<OPEN>();\n", "",
  "tiles are used before they have come", "cuda_attention_mma_forward")
m("mma-fragment", "runtime/cuda/kernels_attention_mma.cu",
  "(lane_of() % 8 + lane_of() / 16 * 8) * sizes<DIM>::PITCH + lane_of() / 8 % 2 * PACK",
  "(lane_of() % 8 + lane_of() / 8 % 2 * 8) * sizes<DIM>::PITCH + lane_of() / 16 * PACK",
  "the right operand of scores has its 8 x 8 matrices in the order of the left one's", "cuda_attention_mma_forward")
m("mma-rescale", "runtime/cuda/kernels_attention_mma.cu",
  "        state->total[half] *= rescale[half];\n", "",
  "a softmax's sum of earlier tiles keeps their maximum", "cuda_attention_mma_forward")
