"""What fusescope knows of ONNX operations: tables that the analysis reads, one place for each fact."""

QUANTIZE = frozenset({"QuantizeLinear", "TRT_FP8QuantizeLinear", "TRT_INT8QuantizeLinear"})
"""High precision in, 8 bits out. The TRT_ forms are those that ModelOpt writes from torch."""

DEQUANTIZE = frozenset({"DequantizeLinear", "TRT_FP8DequantizeLinear", "TRT_INT8DequantizeLinear"})
"""8 bits in, high precision out."""

FORMATS = {"float8e4m3fn": "fp8", "int8": "int8"}
"""Short names of the number formats; others go by their ONNX element type."""

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operations that TensorRT runs in 8 bits, and whose kernels can end in a Quantize."""

ALIAS = frozenset({"Identity", "Cast"})
"""Operations whose output is the same value."""

SHAPE_READERS = frozenset({"Shape", "Size"})
"""Operations that read a tensor's extents, not its values: no kernel needs the tensor for them."""

ACTIVATIONS = frozenset(
    {
        "Celu",
        "Clip",
        "Elu",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Mish",
        "PRelu",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
    }
)
"""Operations of one tensor that a conv or gemm applies to its result in registers."""

AFFINE = frozenset({"Add", "Sub", "Mul", "Div"})
"""With one constant operand, a bias or a scale: TensorRT's "Scale", which it fuses into a conv or gemm."""

POINTWISE = (
    ACTIVATIONS | AFFINE | ALIAS | {"Abs", "Erf", "Exp", "Log", "Max", "Min", "Neg", "Pow", "Reciprocal", "Sqrt", "Sum"}
)
"""Element by element. Activations that exporters spell out (SiLU, GELU, Mish) are made of these."""

MOVES = frozenset({"Dropout", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operations that move elements without looking at them, so that Quantize and Dequantize move across them."""

COMMUTES = MOVES | {"MaxPool"}
"""Operations with Q(op(x)) == op(Q(x)): TensorRT documentation, "Q/DQ layer-placement", Q/DQ propagation."""

SAME_CODES = ALIAS | COMMUTES
"""Operations behind which a tensor still holds the codes, or the dequantized values, that it held before."""

PASSES = ACTIVATIONS | ALIAS | MOVES | {"BatchNormalization"}
"""Operations of one activation that become part of the conv or gemm before them."""

SUMS = frozenset({"Add", "Sum"})

UPSAMPLES = frozenset({"ConvTranspose", "DepthToSpace", "Resize", "Upsample"})

KINDS = {
    "Conv": "conv",
    "ConvTranspose": "conv",
    "Gemm": "gemm",
    "MatMul": "gemm",
    "AveragePool": "pool",
    "GlobalAveragePool": "pool",
    "GlobalMaxPool": "pool",
    "LpPool": "pool",
    "MaxPool": "pool",
    "Concat": "concat",
    "Resize": "resize",
    "Upsample": "resize",
    "GroupNormalization": "norm",
    "InstanceNormalization": "norm",
    "LayerNormalization": "norm",
    "LogSoftmax": "norm",
    "LpNormalization": "norm",
    "LRN": "norm",
    "MeanVarianceNormalization": "norm",
    "RMSNormalization": "norm",
    "Softmax": "norm",
    **dict.fromkeys(DEQUANTIZE, "dequantize"),
    **dict.fromkeys((f"Reduce{how}" for how in ("L1", "L2", "LogSum", "Max", "Mean", "Min", "Prod", "Sum")), "reduce"),
}
"""Kind of a producer, by operation; others go by their operation in lower case."""

RUNS_IN_8_BITS = WEIGHTED | SUMS | MOVES | ALIAS | {"AveragePool", "Concat", "GlobalAveragePool", "MaxPool"}
"""Operations that read an 8-bit tensor as it is: weighted, other "quantizable" layers, data movement."""
