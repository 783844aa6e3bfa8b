"""The list of graph rewrites, in order, and the driver that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from torch.fx import GraphModule

from polyfuse.base.settings import Settings
from polyfuse.base.text import NO_TEXTS, PassTexts
from polyfuse.frontend.graph import Note
from polyfuse.frontend.rewrites.attention.flexible import spell_out_flexible
from polyfuse.frontend.rewrites.attention.spelled import fuse_attention, share_heads
from polyfuse.frontend.rewrites.chunked import chunk_matmuls
from polyfuse.frontend.rewrites.collectives import bucket_collectives, merge_collectives, symmetric_sums
from polyfuse.frontend.rewrites.constant_folding import (
    fold_constants,
    fold_uniform,
    lifted_scalars,
    spell_as_full,
)
from polyfuse.frontend.rewrites.cse import merge_duplicates
from polyfuse.frontend.rewrites.linear import join_rows
from polyfuse.frontend.rewrites.masks.calls import leave_out_masks
from polyfuse.frontend.rewrites.noop import (
    merge_casts,
    remove_copies,
    remove_identity_views,
    remove_neutral_arithmetic,
    undo_copies,
)
from polyfuse.frontend.rewrites.pairs.regions import compute_in_pairs
from polyfuse.frontend.rewrites.resized import convolve_before_enlarging
from polyfuse.frontend.rewrites.scatter import pad_slices, scatter_into_sums
from polyfuse.frontend.rewrites.softmax import spell_out_log_softmax
from polyfuse.frontend.rewrites.tools import Pass, Rewriting, Stage, is_refused
from polyfuse.frontend.rewrites.views import (
    activate_parts,
    look_at_memory,
    merge_views,
    spell_as_permute,
    spell_as_view,
)
from polyfuse.frontend.saved_values import compute_saved_early
from polyfuse.torch_compat import ops

MoreRewrites: TypeAlias = Callable[[Rewriting], Sequence[tuple[str, int]]]
"""Rewrites from elsewhere: how often each applied, by name."""


def remove_dead(state: Rewriting) -> int:
    """Drop calls whose result nobody reads; random ones stay, since eager mode would have drawn their
    numbers, and those that eager mode refuses, since they raise.
    """
    count = 0
    for node in reversed(list(state.graph.nodes)):
        if node.users or node.op not in ("call_function", "get_attr"):
            continue
        facts = ops.facts(node.target) if node.op == "call_function" else None
        if facts is None or not (facts.effects or facts.is_random or is_refused(node)):
            state.graph.erase_node(node)
            count += 1
    return count


PASSES: Final[tuple[tuple[str, Pass], ...]] = (
    ("spell-out-flexible", spell_out_flexible),
    ("remove-dead", remove_dead),
    ("spell-as-permute", spell_as_permute),
    ("look-at-memory", look_at_memory),
    ("spell-as-view", spell_as_view),
    ("spell-as-full", spell_as_full),
    ("lifted-scalars", lifted_scalars),
    ("fold-constants", fold_constants),
    ("fold-uniform", fold_uniform),
    ("compute-in-pairs", compute_in_pairs),
    ("leave-out-masks", leave_out_masks),
    ("spell-out-log-softmax", spell_out_log_softmax),
    ("merge-casts", merge_casts),
    ("merge-views", merge_views),
    ("remove-identity-views", remove_identity_views),
    ("remove-neutral-arithmetic", remove_neutral_arithmetic),
    ("undo-copies", undo_copies),
    ("remove-copies", remove_copies),
    ("fuse-attention", fuse_attention),
    ("share-heads", share_heads),
    ("join-rows", join_rows),
    ("convolve-before-enlarging", convolve_before_enlarging),
    ("scatter-into-sums", scatter_into_sums),
    ("pad-slices", pad_slices),
    ("activate-parts", activate_parts),
    ("merge-duplicates", merge_duplicates),
    ("remove-dead-again", remove_dead),
    ("merge-collectives", merge_collectives),
    ("chunk-matmuls", chunk_matmuls),
    ("bucket-collectives", bucket_collectives),
    ("symmetric-sums", symmetric_sums),
    ("compute-saved-early", compute_saved_early),
)
"""Name and function of every rewrite, in the order in which they run."""

_FOLDING: Final = ("lifted-scalars", "fold-constants", "fold-uniform")

_TIDYING: Final[tuple[tuple[str, Pass], ...]] = (
    ("merge-duplicates-again", merge_duplicates),
    ("remove-dead-at-last", remove_dead),
)


def rewrite_graph(
    module: GraphModule,
    settings: Settings,
    *,
    stage: Stage,
    more: MoreRewrites | None = None,
    texts: PassTexts = NO_TEXTS,
    notes: list[Note] | None = None,
    static: Sequence[int] = (),
) -> tuple[tuple[str, int], ...]:
    """Run every rewrite on `module`, in place, and `more` after them; returns how often each one applied,
    leaving out those that did not.

    `texts` records the graph before and after each, and `notes` gets the messages of single ones.
    `static` has the positions of parameters and buffers among the inputs. `settings.fuel` limits the number
    of rewrites of one graph. Dropping dead calls costs none.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    parameters = frozenset(placeholders[i] for i in static)
    state = Rewriting(module, settings, stage, settings.fuel, [] if notes is None else notes, parameters)
    counts: list[tuple[str, int]] = []
    texts.begin(lambda: str(module.graph))
    for name, function in PASSES:
        if name in _FOLDING and not settings.constant_folding:
            continue
        done = function(state)
        if done:
            counts.append((name, done))
            texts.note(name, lambda: str(module.graph))
        if settings.verify >= 2:
            module.graph.lint()
    others = [(name, done) for name, done in more(state) if done] if more is not None else []
    if others:
        counts += others
        texts.note("of-plugins", lambda: str(module.graph))
        counts += [(name, done) for name, function in _TIDYING if (done := function(state))]
        texts.note("tidying", lambda: str(module.graph))
    module.graph.lint()
    module.recompile()
    return tuple(counts)
