"""Stock llama.cpp through the C interface that the package xllamacpp carries, or llama-cpp-python without it.

xllamacpp's Python classes only have a server, without logits; its shared library
exports the whole C interface. The parameter structs are taken as opaque memory
from `llama_*_default_params`: only the first fields of the context's are touched,
after a look at whether they hold the defaults that llama.h gives them.
"""

import ctypes
import importlib.util
import pathlib

import gguf
import numpy


class Blob(ctypes.Structure):
    """A struct of unknown layout, larger than any of llama.h's, passed by value in memory."""

    _fields_ = [("words", ctypes.c_uint64 * 64)]


class Batch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
POINTERS = ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab", "llama_get_memory")


def _library():
    found = [(importlib.util.find_spec(name), names) for name, names in
             (("xllamacpp", "xllamacpp*.so"), ("llama_cpp", "lib/libllama.so"))]
    paths = [path for spec, names in found if spec for path in pathlib.Path(spec.origin).parent.glob(names)]
    if not paths:
        raise SystemExit("error: package xllamacpp is missing; pip install -r tests/requirements-llm.txt")
    path = paths[0]
    library = ctypes.CDLL(str(path))
    for name in POINTERS:
        getattr(library, name).restype = ctypes.c_void_p
    library.llama_model_default_params.restype = Blob
    library.llama_context_default_params.restype = Blob
    library.llama_get_logits.restype = ctypes.POINTER(ctypes.c_float)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.llama_backend_init()
    return library


LIBRARY = _library()
_messages = []


@LOG
def _log(level, text, _data):
    _messages.append(text.decode(errors="replace"))
    del _messages[:-40]


LIBRARY.llama_log_set(_log, None)


def quantise(kind, matrix):
    """Rows of f32 in the block format of ggml's type number `kind`, as bytes [rows, row bytes]."""
    matrix = numpy.ascontiguousarray(matrix, numpy.float32)
    rows, columns = matrix.shape
    out = numpy.zeros(matrix.size * 4 + 1024, numpy.uint8)
    # Types of one to three bits ask how important columns are: equally so, as the others take it if they are not told.
    grids = gguf.GGMLQuantizationType(kind).name.startswith(("IQ1", "IQ2", "IQ3"))
    importance = numpy.ones(columns, numpy.float32)
    size = LIBRARY.ggml_quantize_chunk(
        ctypes.c_int(kind), matrix.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(columns),
        importance.ctypes.data_as(ctypes.c_void_p) if grids else None)
    return out[:size].reshape(rows, -1).copy()


def _newer(name, number, elements, size):
    """Teaches the package `gguf` a type that it does not know yet, whose values llama.cpp tells."""
    kinds = gguf.GGMLQuantizationType
    if name not in kinds.__members__:
        kind = int.__new__(kinds, number)
        kind._name_, kind._value_ = name, number
        kinds._member_map_[name] = kinds._value2member_map_[number] = kind
        gguf.GGML_QUANT_SIZES[kind] = (elements, size)

    def dequantize_blocks(_, blocks):
        blocks = numpy.ascontiguousarray(blocks)
        out = numpy.zeros((len(blocks), elements), numpy.float32)
        getattr(LIBRARY, f"dequantize_row_{name.lower()}")(
            blocks.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(out.size))
        return out

    base = getattr(gguf.quants, "__Quant")
    type(name, (base,), {"dequantize_blocks": classmethod(dequantize_blocks)}, qtype=kinds[name])


_newer("Q1_0", 41, 128, 18)
_newer("Q2_0", 42, 64, 18)


class Model:
    """A GGUF file loaded by llama.cpp with its defaults, one sequence, the given threads."""

    def __init__(self, path, vocab, threads=1, context=512):
        self.vocab, self.threads, self.context = vocab, threads, context
        self.model = LIBRARY.llama_model_load_from_file(str(path).encode(), LIBRARY.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp refuses the file: " + "".join(_messages[-6:]).strip())
        params = LIBRARY.llama_context_default_params()
        head = ctypes.cast(ctypes.pointer(params), ctypes.POINTER(ctypes.c_uint32))
        if list(head[0:4]) != [512, 2048, 512, 1]:
            raise RuntimeError(f"llama_context_params begins with {head[0:4]}: another version of llama.cpp?")
        head[0] = context
        self.ctx = LIBRARY.llama_init_from_model(ctypes.c_void_p(self.model), params)
        if not self.ctx:
            raise RuntimeError("llama.cpp makes no context: " + "".join(_messages[-6:]).strip())
        LIBRARY.llama_set_n_threads(ctypes.c_void_p(self.ctx), threads, threads)

    def clear(self):
        memory = LIBRARY.llama_get_memory(ctypes.c_void_p(self.ctx))
        LIBRARY.llama_memory_clear(ctypes.c_void_p(memory), ctypes.c_bool(True))

    def eval(self, ids):
        """Logits [len(ids), vocab] of further tokens."""
        n = len(ids)
        tokens = (ctypes.c_int32 * n)(*ids)
        wanted = (ctypes.c_int8 * n)(*([1] * n))
        status = LIBRARY.llama_decode(ctypes.c_void_p(self.ctx), Batch(n, tokens, None, None, None, None, wanted))
        if status:
            raise RuntimeError(f"llama_decode: status {status}")
        logits = LIBRARY.llama_get_logits(ctypes.c_void_p(self.ctx))
        return numpy.ctypeslib.as_array(logits, (n, self.vocab)).copy()

    def greedy(self, prompt, count):
        """Logits of the prompt, the greedy tokens after it, and the logits each was chosen from."""
        self.clear()
        prompt_logits = self.eval(prompt)
        last, tokens, rows = prompt_logits[-1], [], []
        for _ in range(count):
            tokens.append(int(last.argmax()))
            rows.append(last)
            last = self.eval([tokens[-1]])[0]
        return prompt_logits, tokens, rows

    def tokenize(self, text, special=True):
        """Tokens of a text, with the file's own rule about bos."""
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 8))()
        vocab = LIBRARY.llama_model_get_vocab(ctypes.c_void_p(self.model))
        count = LIBRARY.llama_tokenize(ctypes.c_void_p(vocab), data, len(data), out, len(out),
                                       ctypes.c_bool(special), ctypes.c_bool(special))
        return list(out[:count])

    def close(self):
        LIBRARY.llama_free(ctypes.c_void_p(self.ctx))
        LIBRARY.llama_model_free(ctypes.c_void_p(self.model))
