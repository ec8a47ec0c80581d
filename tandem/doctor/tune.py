"""`tandem doctor --tune`: measures the GPU's kernels and keeps the fastest launch shapes."""

from __future__ import annotations

from tandem import output
from tandem.exits import CommandError, Exit
from tandem.settings.table import Settings


def tune(settings: Settings) -> None:
    """Measure the GPU of `settings` for its model, or for the bench's shapes where the file is not here. What is found
    goes to stderr, the file's path to stdout. Raises CommandError without a GPU that can be used."""
    from engine.execution.devices import UnusableDevice, choose, look
    from engine.models.catalog import UnknownModel
    from engine.models.catalog import resolve as find

    try:
        choice = choose(settings.device, look())
        path = find(settings.model)
    except (UnusableDevice, UnknownModel) as why:
        raise CommandError(f"doctor --tune: {why}", Exit.FAILURE) from why
    if choice.gpu is None:
        why_none = choice.reason or "the device is cpu"
        raise CommandError(f"doctor --tune measures a CUDA GPU, and {why_none}", Exit.FAILURE)
    from engine.execution.cuda.tuning import tune_gpu
    from engine.models.weights.gguf import DamagedModel, UnsupportedModel

    model = path if path.is_file() else None
    output.note(f"measuring {choice.gpu.device} ({choice.gpu.name}) for {model or 'the shapes of bench shape'}")
    try:
        kept = tune_gpu(choice.gpu, model, output.note)
    except (DamagedModel, UnsupportedModel, OSError, RuntimeError) as why:
        raise CommandError(f"doctor --tune: {why}", Exit.FAILURE) from why
    output.emit(str(kept))
