"""Quantise a graph to int8: `python -m armwise.arms.models.quantise GRAPH QUANTISED`.

It is a process of its own, since it takes some 400 MB for some seconds.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic


def quantise(graph: Path, quantised: Path) -> None:
    """Write a graph whose products of matrices are of integers; activations are quantised as a text is read.

    Weights get seven bits, so that sums fit into 16 bits on processors without VNNI, and all agree.
    """
    with TemporaryDirectory(dir=quantised.parent) as scratch:
        folded = Path(scratch) / "folded.onnx"  # weights that are stored in int8 are float32 here
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        quantize_dynamic(
            folded,
            quantised,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )


if __name__ == "__main__":
    quantise(Path(sys.argv[1]), Path(sys.argv[2]))
