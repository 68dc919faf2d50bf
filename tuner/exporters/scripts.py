"""Shell scripts and file heads that several exporters write."""

from collections.abc import Mapping, Sequence

from tuner.ports import ExportRequest

_PORT = 29500


def head(request: ExportRequest, trainer: str, versions: str, prefix: str = "# ") -> str:
    """What the file is, as comment lines."""
    lines = [
        f"Written by `tuner export` for {trainer}: {versions}.",
        f"{request.model.name}: {request.config.short()}, on {request.config.world_size} devices.",
        f"An optimizer step is {request.training.global_batch_size} sequences of "
        f"{request.training.sequence_length} tokens: {request.num_microbatches} micro-batches of "
        f"{request.config.micro_batch_size} on each of {request.config.dp} replicas.",
    ]
    if request.origin:
        lines.append(request.origin)
    return "".join(f"{prefix}{line}\n" for line in lines)


def arguments_file(title: str, arguments: Sequence[str]) -> str:
    """A flag with its values on each line, which `run_script` reads."""
    lines: list[str] = []
    for word in arguments:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return title + "".join(f"{line}\n" for line in lines)


_HERE = 'here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n'
# Slurm runs a copy of the script that lies elsewhere: submit it from its own folder.
_UNDER_SLURM = "here=$SLURM_SUBMIT_DIR\n"


def _read_arguments(file: str, here: str = _HERE) -> str:
    return f'{here}read -r -a arguments <<< "$(grep -v "^#" "$here/{file}" | tr "\\n" " ")"\n'


def _exports(environment: Mapping[str, str]) -> str:
    return "".join(f"export {name}={value}\n" for name, value in environment.items())


def torchrun_script(
    request: ExportRequest,
    title: str,
    program: str,
    *,
    arguments_in: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Start the program by torchrun; run it on every node, where there are several.

    `arguments_in` is the file beside the script whose flags the program gets; more may be given to
    the script.
    """
    nodes = (
        f' \\\n  --nnodes {request.num_nodes} --node-rank "${{NODE_RANK:?the number of this node}}"'
        ' --master-addr "${MASTER_ADDR:?the first node}"'
        f' --master-port "${{MASTER_PORT:-{_PORT}}}"'
    )
    return (
        f"#!/usr/bin/env bash\n{title}set -euo pipefail\n{_exports(environment or {})}"
        + (_read_arguments(arguments_in) if arguments_in else "")
        + f"exec torchrun --nproc-per-node {request.ranks_per_node}"
        + (nodes if request.num_nodes > 1 else " --standalone")
        + f" \\\n  {program}"
        + (' "${arguments[@]}"' if arguments_in else "")
        + ' "$@"\n'
    )


def sbatch_script(
    request: ExportRequest,
    title: str,
    program: str,
    *,
    arguments_in: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """The same under Slurm: one torchrun on each node, which meet at the first one."""
    return (
        "#!/usr/bin/env bash\n"
        f"#SBATCH --job-name={request.model.name}\n"
        f"#SBATCH --nodes={request.num_nodes}\n"
        "#SBATCH --ntasks-per-node=1\n"
        f"#SBATCH --gpus-per-node={request.ranks_per_node}\n"
        "#SBATCH --time=01:00:00\n"
        f"{title}set -euo pipefail\n{_exports(environment or {})}"
        + (_read_arguments(arguments_in, _UNDER_SLURM) if arguments_in else "")
        + 'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        + f"exec srun torchrun --nproc-per-node {request.ranks_per_node}"
        + f' --nnodes {request.num_nodes} --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d'
        + f' --rdzv-endpoint "$first:{_PORT}" \\\n  {program}'
        + (' "${arguments[@]}"' if arguments_in else "")
        + ' "$@"\n'
    )  # fmt: skip
