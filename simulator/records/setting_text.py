"""How are settings written in sentences, tables and legends: a value, a setting, or every setting of a point?

A mapping's kind (`strategy`, `rule` or `what`) comes first, without its key. A boolean becomes words for True or for
False. A number gets its customary unit ("64 GPUs").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from simulator.basics.sections import SECTIONS, flat
from simulator.basics.units import format_time

_KINDS: Final = ("strategy", "rule", "what")
# Keys whose values are clear without the key.
_WITHOUT_NAME: Final = (
    "algorithm", "topology", "gpu", "operation", "dtype", "strategy", "sharding", "model", "faults", "parallelism",
    "schedule", "precision", "framework", "dispatch", "size", "engine",
)  # fmt: skip
# Keys inside a mapping whose values are clear without the key.
_CLEAR_INSIDE: Final = ("schedule",)
# Words for True and for False, by key.
_BOOLEANS: Final[Mapping[str, tuple[str, str]]] = {
    "activations": ("activations on the host", "activations on the GPU"),
    "asynchronous": ("asynchronous", "synchronous"),
    "balanced": ("balanced", "unbalanced"),
    "compile": ("compiled", "not compiled"),
    "dora": ("DoRA", "no DoRA"),
    "regather": ("inputs gathered again", "gathered inputs kept"),
    "dropout": ("dropout", "no dropout"),
    "float32_outputs": ("float32 logits returned", "no float32 logits returned"),
    "numerics": ("real training", "no real training"),
    "overlap": ("exchanges overlapped", "exchanges not overlapped"),
    "payload": ("payload", "no payload"),
    "reshard_after_forward": ("parameters freed after forward", "parameters kept after forward"),
    "sequence_parallel": ("sequence parallel", "without sequence parallelism"),
    "shared": ("overflows shared", "overflows not shared"),
    "use_cache": ("keys and values returned", "no keys and values returned"),
}
# Keys of a model's number of layers and width, by family (Hugging Face's names).
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers")
_WIDTHS: Final = ("hidden_size", "n_embd", "d_model")
# Most characters for a setting in a legend, a cell or a list.
_LONGEST: Final = 72
_SPEEDS: Final = {0.5: "half speed", 0.25: "a quarter of its speed", 0.1: "a tenth of its speed"}


def setting_text(value: Any) -> str:
    """Return a scenario setting's value in words.

    >>> setting_text({"strategy": "parameter_server", "asynchronous": True, "servers": 2})
    'parameter_server (asynchronous, 2 servers)'
    >>> setting_text([]), setting_text({3: 0.5}), setting_text({"prefetch": 0, "reshard_after_forward": False})
    ('none', '3 0.5', 'prefetch 0, parameters kept after forward')
    """
    if isinstance(value, Mapping):
        kind = next((setting_text(value[key]) for key in _KINDS if key in value), "")
        rest = ", ".join(_entries({str(key): inner for key, inner in value.items() if key not in _KINDS}))
        return f"{kind} ({rest})" if kind and rest else kind or rest or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def _entries(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Yield each key and its value in words; the place of parameter servers belongs to their number."""
    count = mapping.get("servers")
    for key, value in mapping.items():
        if key == "servers" and isinstance(count, int | str):
            yield _servers({"count": count, "on": mapping.get("servers_on", "")})
        elif key != "servers_on" or not isinstance(count, int | str):
            yield entry_text(key, value)


def entry_text(key: str, value: Any) -> str:
    """Return a key and its value in words.

    >>> entry_text("chunks", 4), entry_text("compile", False), entry_text("tie_word_embeddings", False)
    ('chunks 4', 'not compiled', 'tie word embeddings false')
    """
    name = key.replace("_", " ")
    if isinstance(value, bool):
        return _BOOLEANS.get(key, (name, f"{name} false"))[0 if value else 1]
    return setting_text(value) if key in _CLEAR_INSIDE else f"{name} {setting_text(value)}"


def labelled(settings: Mapping[str, Any]) -> str:
    """Return a text for a legend that names several settings, given by dotted key.

    >>> labelled({"collective.algorithm": "ring", "training.micro_batch_size": 2})
    'ring, micro-batch 2'
    >>> labelled({"cluster.stragglers": {3: 0.5}, "cluster.world_size": 64})
    'rank 3 at half speed, 64 GPUs'
    """
    return ", ".join(label(key, value) for key, value in settings.items())


def label(key: str, value: Any) -> str:
    """Return a text for a legend that names a scenario's setting.

    Parameters
    ----------
    key : str
        Dotted key, such as "cluster.world_size".
    value : Any
        Value as written in the scenario.

    Examples
    --------
    >>> label("training.seq_len", 8192), label("cluster.stragglers", {}), label("collective.fusion", None)
    ('8,192 tokens', 'no slow GPU', 'no fusion')
    >>> label("collective", {"algorithm": "parameter_server", "servers": {"count": 4, "on": "workers"}})
    'parameter_server, 4 servers on workers'
    >>> label("training.sharding", {"strategy": "parameter_server", "servers": "all", "servers_on": "workers"})
    'parameter_server (a server on each worker)'
    >>> label("training.model", {"model_type": "gpt2", "n_layer": 96, "n_embd": 1600, "n_head": 25})
    'gpt2, 96 layers of width 1600 (303e)'
    """
    return _short(_label(key, value))


def _short(text: str) -> str:
    """Return a text, shortened for a legend if it is long; a hash keeps shortened texts distinct."""
    if len(text) <= _LONGEST:
        return text
    # Two long settings may have equal beginnings; the hash keeps their labels distinct.
    return f"{text[: _LONGEST - 12].rstrip(' ,')} ... ({_mark(text)})"


def _label(key: str, value: Any) -> str:
    # A whole section (such as "collective") is written setting by setting.
    if key in SECTIONS and isinstance(value, Mapping):
        return ", ".join(_label(*entry) for entry in flat({key: value}).items()) or "unchanged"
    # Texts for particular keys take precedence over the general rule.
    spoken = _SPOKEN.get(key)
    if spoken is not None:
        return spoken(value)
    name = key.rpartition(".")[2]
    if value is None:
        return f"no {name.replace('_', ' ')}"
    return setting_text(value) if name in _WITHOUT_NAME else entry_text(name, value)


def _counted(singular: str, plural: str) -> Callable[[Any], str]:
    """Return a function for writing a number with the noun `singular` or `plural`."""

    def text(value: Any) -> str:
        number = f"{value:,}" if isinstance(value, int) else str(value)
        return f"{number} {singular if value == 1 else plural}"

    return text


def _share(factor: Any) -> str:
    if not isinstance(factor, int | float):
        return str(factor)
    return _SPEEDS.get(factor, f"{100 * factor:.3g} % of its speed")


def _slow_ranks(value: Any) -> str:
    if not isinstance(value, Mapping) or not value:
        return "no slow GPU"
    return ", ".join(f"rank {rank} at {_share(factor)}" for rank, factor in value.items())


_PER_WORKER: Final = {"own": "a separate server per worker", "workers": "a server on each worker"}


def _micro_batches(value: Any) -> str:
    return "all micro-batches" if value == "all" else str(_counted("micro-batch", "micro-batches")(value))


def _servers(value: Any) -> str:
    if not isinstance(value, Mapping):
        return setting_text(value)
    count = value.get("count", 1)
    if count == "all":
        return _PER_WORKER.get(value.get("on", ""), "a server per worker")
    suffix = " of its own" if count == 1 else " of their own"
    place = {"own": suffix, "workers": " on workers"}.get(value.get("on", ""), "")
    return f"{_counted('server', 'servers')(count)}{place}"


def _model(value: Any) -> str:
    """Write a model: a name, or the family, layers and width of a written-out model, with a mark of all its keys.

    The mark keeps models apart that differ in further keys.
    """
    if not isinstance(value, Mapping):
        return setting_text(value)
    layers = next((value[key] for key in _LAYERS if key in value), "?")
    width = next((value[key] for key in _WIDTHS if key in value), "?")
    return f"{value.get('model_type', 'model')}, {layers} layers of width {width} ({_mark(setting_text(value))})"


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def _listed(parts: Any) -> str:
    """Return parts of a model as text: "head and layer 3"."""
    names = [parts] if isinstance(parts, str) else list(parts)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _lora(value: Any) -> str:
    """Write low-rank adapters: "LoRA rank 16", with options if any; rank 0 trains every parameter."""
    if not isinstance(value, Mapping):
        return setting_text(value)
    if not value.get("rank"):
        return "full fine-tuning"
    rest = ", ".join(_entries({key: inner for key, inner in value.items() if key not in ("rank", "targets")}))
    targets = value.get("targets", "all")
    scope = "" if targets == "all" else f" on {setting_text(targets).replace('_', ' ')}"
    return f"LoRA rank {value['rank']}{scope}{f' ({rest})' if rest else ''}"


def _optimizer(value: Any) -> str:
    """Return a text for an optimizer: its name first.

    >>> _optimizer("adam"), _optimizer({"name": "muon", "distribution": "owners"})
    ('optimizer adam', 'optimizer muon (distribution owners)')
    """
    if not isinstance(value, Mapping) or "name" not in value:
        return entry_text("optimizer", value)
    rest = {key: inner for key, inner in value.items() if key != "name"}
    return f"optimizer {value['name']}" + (f" ({setting_text(rest)})" if rest else "")


def _checkpointing(value: Any) -> str:
    """Return a phrase for activation checkpointing.

    >>> _checkpointing("none"), _checkpointing(2), _checkpointing({"every": 1})
    ('no checkpointing', 'checkpointing of one in 2 layers', 'full checkpointing')
    """
    every = value.get("every") if isinstance(value, Mapping) else value
    if isinstance(every, int):
        return "full checkpointing" if every == 1 else f"checkpointing of one in {every} layers"
    return f"{'no' if value == 'none' else setting_text(value)} checkpointing"


def _slow_links(value: Any) -> str:
    if not isinstance(value, Mapping) or not value:
        return "no slow link"
    return ", ".join(
        # A name with a wildcard means several links.
        f"{link} at {_share(factor).replace('its', 'their') if set(link) & set('*?[') else _share(factor)}"
        for link, factor in _cables(value).items()
    )


def _cables(factors: Mapping[str, Any]) -> dict[str, Any]:
    """Return {link: factor}, with a single entry "a <-> b" for a cable with equal factors in both directions.

    >>> _cables({"gpu0->hub": 0.5, "gpu1->hub": 0.1, "hub->gpu0": 0.5})
    {'gpu0 <-> hub': 0.5, 'gpu1->hub': 0.1}
    """
    cables: dict[str, Any] = {}
    for link, factor in factors.items():
        src, _, dst = str(link).partition("->")
        back = f"{dst} <-> {src}"
        if back in cables and factors.get(f"{dst}->{src}") == factor:
            continue
        cables[f"{src} <-> {dst}" if factors.get(f"{dst}->{src}") == factor else str(link)] = factor
    return cables


def _events(value: Any) -> str:
    """Return events of a cluster in words: "gpu0->switch0 down", "rank 3 at half its speed"."""
    if not value:
        return "no events"
    return ", ".join(_event(one if isinstance(one, Mapping) else one.model_dump(exclude_none=True)) for one in value)


def _event(event: Mapping[str, Any]) -> str:
    name = (
        str(event["link"]) if "link" in event else " ".join(f"{k} {event[k]}" for k in ("rank", "node") if k in event)
    )
    several = bool(set(name) & set("*?["))
    name = f"links {name}" if several else name
    factor, lasts, times = event.get("factor", 0.0), event.get("lasts"), event.get("times", 1)
    share = _share(factor).replace("its", "their") if several else _share(factor)
    rate = f"at {share}" if factor else "down" if "link" in event else "dead"
    often = f" {times} times" if times > 1 else ""
    long = "" if lasts is None else f" for {_duration(lasts)}"
    around = event.get("reroute_after")
    rerouted = "" if around is None else f", rerouted after {_duration(around)}"
    return f"{name} {rate}{often}{long}{rerouted}"


def _duration(value: str | float) -> str:
    # Read from a file, a duration is text; completed, seconds.
    return value if isinstance(value, str) else format_time(value)


def _resharding(value: Any) -> str:
    if isinstance(value, bool):
        return "resharding after forward" if value else "no resharding after forward"
    return f"resharding over {value} ranks after forward"


def _lengths(value: Any) -> str:
    """Return documents' lengths in words; `value` is None, a mapping, or the record of the keys."""
    if value is None:
        return "one length of documents"
    keys = value if isinstance(value, Mapping) else value.model_dump()
    if keys.get("file"):
        return f"the mix of documents of {keys['file']}"
    if keys.get("histogram"):
        # Numbers, or texts such as "4k", as written.
        lengths = list(keys["histogram"])
        each = f"{len(lengths)} lengths from {lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"{lengths[0]}"
        return f"a mix of documents of {each} tokens"
    return f"a mix of documents of {keys['median']} tokens in the median (sigma {keys['sigma']})"


_SPOKEN: Final[Mapping[str, Callable[[Any], str]]] = {
    "cluster.world_size": _counted("GPU", "GPUs"),
    "cluster.stragglers": _slow_ranks,
    "cluster.link_factors": _slow_links,
    "cluster.events": lambda value: _events(value),
    "cluster.storage": lambda value: "no storage" if value is None else f"a storage of {setting_text(value)}",
    "collective.servers": lambda value: _servers(value),
    "collective.servers.count": lambda value: _servers({"count": value}),
    "collective.servers.on": lambda value: "servers of their own" if value == "own" else f"servers on {value}",
    "training.tokens_used": lambda value: "no padding" if value == 1 else f"{100 * (1 - value):.3g} % padding",
    "training.lengths": lambda value: _lengths(value),
    "training.mtp_layers": lambda value: f"{value or 'no'} further token{'s' if value > 1 else ''} predicted",
    "training.lora": lambda value: _lora(value),
    "training.trainable": lambda value: "all parts trained" if value == "all" else f"only {_listed(value)} trained",
    "training.lora.rank": lambda value: _lora({"rank": value}),
    "training.optimizer": _optimizer,
    "training.optimizer.name": _optimizer,
    "training.seq_len": _counted("token", "tokens"),
    "training.model": _model,
    "training.micro_batch_size": lambda value: f"micro-batch {value}",
    "training.gradient_accumulation_steps": _counted("micro-batch", "micro-batches"),
    "collective.fusion": lambda value: "no fusion" if value is None else setting_text(value),
    "collective.accumulate": lambda value: "sums in float32" if value == "float32" else "sums in the payload's dtype",
    # A noun in the singular: sentences say "no resharding after forward takes 2 ms".
    "training.sharding.reshard_after_forward": lambda value: _resharding(value),
    "training.sharding.servers_on": lambda value: "servers of their own" if value == "own" else f"servers on {value}",
    "training.sharding.servers": lambda value: _servers({"count": value}),
    "training.checkpoint_traffic": lambda value: (
        "no checkpoint in flight" if value == "none" else f"a {value} checkpoint in flight"
    ),
    "training.faults": lambda value: setting_text(value) if value else "without faults",
    "training.parallelism.context": setting_text,
    "training.parallelism.deferred_head_gradients": lambda value: (
        "no head gradients deferred" if value == 0 else f"head gradients of {_micro_batches(value)} deferred"
    ),
    "training.parallelism.experts.dtype": lambda value: "sent as they are" if value == "auto" else f"sent as {value}",
    "training.activation_checkpointing": lambda value: _checkpointing(value),
    "training.loss": lambda value: "loss as the framework" if value == "auto" else f"{setting_text(value)} loss",
    "training.steps": _counted("step", "steps"),
    "training.attention": lambda value: f"{setting_text(value)} attention",
    "training.allocator": setting_text,
}
