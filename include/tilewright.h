/* tilewright: kernels, small networks and language models on small machines, from C.
 *
 * Made by cbindgen from src/capi and c/. Three levels, each usable alone:
 *
 * - kernels: tw_sgemm_new() and the like plan one operator, tw_kernel_run() runs it. Also on bare metal.
 * - networks: tw_model_load() an ONNX file, tw_session_new(), tw_session_run().
 * - language models: tw_model_load() a GGUF file, tw_llm_new(), tw_llm_generate().
 *
 * The rules that hold for all functions:
 *
 * - A function that can fail gives a tw_status; after any but TW_OK, tw_last_error() is one line that
 *   says what was wrong, on the thread that called. Results behind out-pointers are only written on
 *   TW_OK, unless the function says otherwise.
 * - Handles are opaque. Each has one _free, for which NULL is nothing to do. They may be freed in any
 *   order: a session keeps alive what it needs of its model.
 * - A model may be used by many threads at once. A session may be handed from thread to thread; while
 *   one call works on it, any other gives TW_BUSY at once, but for tw_llm_cancel().
 * - Strings are UTF-8. Those that go in end with a zero byte, or come with their length.
 * - Nothing is printed, no signal handler, locale or environment variable is touched, and nothing
 *   unwinds into the caller.
 * - What takes more memory than the limit or than the system gives is refused with TW_OUT_OF_MEMORY. While
 *   the system gives none at all, calls go on giving it until something is freed.
 *
 * Where a comment speaks of safety, it lists what a program must see to: the library cannot.
 */

#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stddef.h>
#include <stdint.h>

/*
 The version of the library that this header belongs to; see `tw_version`.
 */
#define TW_VERSION "0.1.0"

/*
 The version of the interface that this header describes; see `tw_abi_version`.
 */
#define TW_ABI_VERSION 1

/*
 Bytes of memory that any kernel has room in, if the caller gives it: see `memory` at the functions
 that make kernels.
 */
#define TW_KERNEL_BYTES 8192

/*
 What that memory is aligned to.
 */
#define TW_KERNEL_ALIGN 8

/*
 From `[n][c][h][w]` to blocked; without, from `[n][h][w][c]`.
 */
#define TW_PLANAR 1

/*
 From blocked, not to it.
 */
#define TW_UNBLOCK 2

/*
 Most extents that a tensor has.
 */
#define TW_MAX_RANK 8

/*
 The bytes given to `tw_model_from_memory` are used where they lie, not copied. They must neither
 change nor go until the model and all its sessions are freed.
 */
#define TW_BORROW 1

/*
 For `tw_tokenize`: what looks like a token that steers the model is one.
 */
#define TW_SPECIAL 1

/*
 For `tw_tokenize`: with the tokens that belong around a text by itself, such as the one that begins
 it.
 */
#define TW_WHOLE 2

/*
 What a function says of its end. Values never change; new ones may be added.
 */
typedef enum tw_status {
    /*
     It is done.
     */
    TW_OK = 0,
    /*
     A NULL that is not allowed, a number out of range, text that is not UTF-8, options of a size
     that no version had.
     */
    TW_INVALID_ARGUMENT = 1,
    /*
     A file could not be read.
     */
    TW_IO = 2,
    /*
     A file is damaged, or not of a kind that is known.
     */
    TW_FORMAT = 3,
    /*
     A model needs what is not supported; the error lists it.
     */
    TW_UNSUPPORTED = 4,
    /*
     A name or an index that the model does not have.
     */
    TW_NOT_FOUND = 5,
    /*
     An element type that does not fit.
     */
    TW_TYPE = 6,
    /*
     A shape that does not fit.
     */
    TW_SHAPE = 7,
    /*
     The caller's buffer is too small; nothing was written to it.
     */
    TW_BUFFER_TOO_SMALL = 8,
    /*
     More memory than the limit allows or the system gives.
     */
    TW_OUT_OF_MEMORY = 9,
    /*
     Another call works on this session.
     */
    TW_BUSY = 10,
    /*
     Not now: outputs before a run, logits before an evaluation, an input that was never set.
     */
    TW_STATE = 11,
    /*
     The context of a language model has no room for these tokens; nothing has changed.
     */
    TW_CONTEXT_FULL = 12,
    /*
     `tw_llm_cancel` ended it.
     */
    TW_CANCELLED = 13,
    /*
     What was computed is not a number: damaged weights.
     */
    TW_NOT_FINITE = 14,
    /*
     A fault of the library.
     */
    TW_INTERNAL = 15,
} tw_status;

/*
 Kinds of models.
 */
typedef enum tw_model_kind {
    /*
     No model: NULL was given.
     */
    TW_MODEL_NONE = 0,
    /*
     Runs in a `tw_session`.
     */
    TW_MODEL_NETWORK = 1,
    /*
     Runs in a `tw_llm`.
     */
    TW_MODEL_LANGUAGE = 2,
} tw_model_kind;

/*
 What happens to a result before it is stored.
 */
typedef enum tw_activation {
    /*
     Nothing.
     */
    TW_LINEAR = 0,
    /*
     The larger of `x` and 0; NaN stays NaN.
     */
    TW_RELU = 1,
    /*
     `min(max(x, low), high)`.
     */
    TW_CLIP = 2,
    /*
     `x > 0 ? x : low * x`.
     */
    TW_LEAKY_RELU = 3,
    /*
     `1 / (1 + exp(-x))`.
     */
    TW_SIGMOID = 4,
    /*
     `tanh(x)`.
     */
    TW_TANH = 5,
    /*
     `x / (1 + exp(-x))`.
     */
    TW_SILU = 6,
    /*
     `x / 2 * (1 + erf(x / sqrt(2)))`.
     */
    TW_GELU = 7,
} tw_activation;

/*
 What keys and values are kept as.
 */
typedef enum tw_cache {
    /*
     As `TW_CACHE_F16`.
     */
    TW_CACHE_DEFAULT = 0,
    /*
     Four bytes a value.
     */
    TW_CACHE_F32 = 1,
    /*
     Two bytes a value.
     */
    TW_CACHE_F16 = 2,
    /*
     34 bytes for 32 values.
     */
    TW_CACHE_Q8_0 = 3,
} tw_cache;

/*
 Type of a tensor's elements, in the machine's byte order.
 */
typedef enum tw_dtype {
    /*
     `float`.
     */
    TW_F32 = 0,
    /*
     IEEE half precision, two bytes.
     */
    TW_F16 = 1,
    /*
     The upper two bytes of a `float`.
     */
    TW_BF16 = 2,
    /*
     `double`.
     */
    TW_F64 = 3,
    /*
     `int8_t`.
     */
    TW_I8 = 4,
    /*
     `uint8_t`.
     */
    TW_U8 = 5,
    /*
     `int16_t`.
     */
    TW_I16 = 6,
    /*
     `uint16_t`.
     */
    TW_U16 = 7,
    /*
     `int32_t`.
     */
    TW_I32 = 8,
    /*
     `uint32_t`.
     */
    TW_U32 = 9,
    /*
     `int64_t`.
     */
    TW_I64 = 10,
    /*
     `uint64_t`.
     */
    TW_U64 = 11,
    /*
     One byte, 0 or 1.
     */
    TW_BOOL = 12,
} tw_dtype;

/*
 Why a generation has ended.
 */
typedef enum tw_finish {
    /*
     The model ended its text.
     */
    TW_FINISH_END = 0,
    /*
     There are as many tokens as wanted.
     */
    TW_FINISH_LENGTH = 1,
    /*
     One of the texts to stop at was found.
     */
    TW_FINISH_STOP = 2,
    /*
     The callback wanted no more.
     */
    TW_FINISH_CALLBACK = 3,
    /*
     The context is full.
     */
    TW_FINISH_CONTEXT = 4,
} tw_finish;

/*
 How important a line is.
 */
typedef enum tw_log_level {
    /*
     A call failed; the line is that of `tw_last_error`.
     */
    TW_LOG_ERROR = 0,
    /*
     Something works otherwise than asked, such as a device that left an operation to the CPU.
     */
    TW_LOG_WARNING = 1,
    /*
     What was loaded and made.
     */
    TW_LOG_INFO = 2,
} tw_log_level;

/*
 What becomes of the pixels of a window.
 */
typedef enum tw_pooling {
    /*
     The largest.
     */
    TW_MAX = 0,
    /*
     The mean.
     */
    TW_AVERAGE = 1,
} tw_pooling;

/*
 An operator of fixed sizes, planned once and run any number of times. It does not change: any number
 of threads may run one kernel at the same time, each with an output and scratch memory of its own.
 Nothing is allocated in a run.
 */
typedef struct tw_kernel tw_kernel;

/*
 A text in the making: tokens go in, logits come out. Sessions of one model share its weights and
 may run at the same time; one session does one thing at a time.
 */
typedef struct tw_llm tw_llm;

/*
 A model: a network of an ONNX file, or a language model of a GGUF file. Sessions share its weights.
 All functions on a model may be called by many threads at once.
 */
typedef struct tw_model tw_model;

/*
 Runs a network. Sessions of one model share its weights and may run at the same time; one session
 does one thing at a time.
 */
typedef struct tw_session tw_session;

/*
 Bytes of what a kernel reads and writes.
 */
typedef struct tw_kernel_sizes {
    /*
     The input: A of a product, the pictures of a convolution.
     */
    size_t x;
    /*
     Weights and bias as `tw_kernel_pack` makes them; 0 for pooling.
     */
    size_t packed;
    /*
     The result.
     */
    size_t y;
    /*
     What is added to the result; 0 if nothing is.
     */
    size_t residual;
    /*
     Memory of a run, with no meaning before or after.
     */
    size_t scratch;
} tw_kernel_sizes;

/*
 Weights as they are stored in files, for `tw_kernel_pack`. What is not needed is NULL and 0.
 */
typedef struct tw_weights {
    /*
     `sizeof (tw_weights)`.
     */
    size_t size;
    /*
     The elements, of the type that the kernel was made for: `[k][n]` of a product (`[n][k]` if it was
     made so), `[c_out][c_in / groups][rows][columns]` of a convolution, `[c][rows][columns]` of a
     depthwise one.
     */
    const void *w;
    /*
     How many elements there are.
     */
    size_t count;
    /*
     One number per column or output channel, or NULL: `float`, for kernels of bytes `int32_t`, which
     is added to the sums.
     */
    const void *bias;
    /*
     Kernels of bytes: factors of the sums (for a result of bytes: scale of x times scale of w divided by
     scale of y), one for all or one per column or output channel. Not needed for `TW_I32`.
     */
    const float *scales;
    /*
     How many factors there are.
     */
    size_t scale_count;
    /*
     Kernels of bytes: zero points of the weights, one for all or one per column or output channel, or
     NULL for 0.
     */
    const int32_t *zero_points;
    /*
     How many zero points there are.
     */
    size_t zero_point_count;
} tw_weights;

/*
 What a kernel is run on. Sizes are in bytes, and at least those of `tw_kernel_sizes_of`. All but bytes
 are aligned to 4 bytes; 64 is faster.
 */
typedef struct tw_operands {
    /*
     `sizeof (tw_operands)`.
     */
    size_t size;
    /*
     The input.
     */
    const void *x;
    /*
     Its bytes.
     */
    size_t x_bytes;
    /*
     What `tw_kernel_pack` made; NULL for pooling.
     */
    const void *packed;
    /*
     Its bytes.
     */
    size_t packed_bytes;
    /*
     What is added to the result, if the kernel was made so.
     */
    const void *residual;
    /*
     Its bytes.
     */
    size_t residual_bytes;
    /*
     Where the result goes. It overlaps no other operand.
     */
    void *y;
    /*
     Its bytes.
     */
    size_t y_bytes;
    /*
     Memory for this run only; NULL if the kernel needs none. It overlaps no other operand.
     */
    void *scratch;
    /*
     Its bytes.
     */
    size_t scratch_bytes;
} tw_operands;

/*
 A product `y = x * w + bias`: `x` is `[m][k]`, `w` is `[k][n]`, `y` is `[m][n]`, row by row without gaps.
 */
typedef struct tw_gemm {
    /*
     `sizeof (tw_gemm)`.
     */
    size_t size;
    /*
     Rows of x and y.
     */
    size_t m;
    /*
     Columns of x, rows of w.
     */
    size_t k;
    /*
     Columns of w and y.
     */
    size_t n;
    /*
     Name of an instruction set; NULL for the best one.
     */
    const char *isa;
    /*
     1 if the weights are given as `[n][k]`.
     */
    int32_t transposed;
    /*
     A `tw_activation`; of kernels of bytes only for results of type `TW_F32`.
     */
    int32_t activation;
    /*
     What the activation calls so.
     */
    float low;
    /*
     What the activation calls so.
     */
    float high;
    /*
     1 to add a residual, `float [m][n]`, before the activation. Not for kernels of bytes.
     */
    int32_t residual;
} tw_gemm;

/*
 Types and zero points of kernels of bytes. A number `q` of bytes stands for
 `(q - zero_point) * scale`. Sums are exact; sizes with which one might leave `int32_t` are refused.
 */
typedef struct tw_quant {
    /*
     `sizeof (tw_quant)`.
     */
    size_t size;
    /*
     Type of x: `TW_I8` or `TW_U8`.
     */
    int32_t x_type;
    /*
     Type of w: `TW_I8` or `TW_U8`.
     */
    int32_t w_type;
    /*
     Type of y: `TW_I32` the sums, `TW_F32` the sums times a scale, `TW_I8` or `TW_U8` that rounded to
     the nearest integer, ties to even, plus a zero point.
     */
    int32_t y_type;
    /*
     Zero point of x, in the range of its type.
     */
    int32_t x_zero_point;
    /*
     Zero point of y, if it is of bytes.
     */
    int32_t y_zero_point;
    /*
     Least and greatest y, if it is of bytes: an activation. Both 0 for the range of the type.
     */
    int32_t y_low;
    /*
     See `y_low`.
     */
    int32_t y_high;
    /*
     How many signed bytes add up to a weight less its zero point: 0 or 1 if all such differences are
     between -128 and 127, 2 between -256 and 254, 3 beyond. Products take it for "1 if a zero point of
     w is not 0".
     */
    uint32_t w_terms;
} tw_quant;

/*
 Sizes of what moves a window over pictures: convolutions and pooling. The output has
 `(h + pads - dilation * (kernel - 1) - 1) / stride + 1` rows, rounded down, and as many columns by the
 same formula; a function `tw_window_output` says them.
 */
typedef struct tw_window {
    /*
     `sizeof (tw_window)`.
     */
    size_t size;
    /*
     Pictures.
     */
    size_t n;
    /*
     Channels of the input.
     */
    size_t c_in;
    /*
     Channels of the output; of depthwise convolutions and pooling those of the input, or 0.
     */
    size_t c_out;
    /*
     Rows of the input.
     */
    size_t h;
    /*
     Columns of the input.
     */
    size_t w;
    /*
     Rows and columns of the window.
     */
    size_t kernel[2];
    /*
     Pixels from a window to the next, down and to the right; 0 for 1.
     */
    size_t stride[2];
    /*
     Pixels between neighbouring taps, down and to the right; 0 for 1.
     */
    size_t dilation[2];
    /*
     Pixels around the input: top, left, bottom, right. Zeros for convolutions (the zero point for those of
     bytes); left out by pooling.
     */
    size_t pads[4];
    /*
     Of convolutions: groups of channels that do not see each other; 0 for 1.
     */
    size_t groups;
    /*
     Name of an instruction set; NULL for the best one.
     */
    const char *isa;
    /*
     1 if the input of a convolution is `[n][h][w][c]`, for networks' first layers; for kernels of bytes at
     most 12 channels. Else it is blocked: `[n][c / 16 rounded up][h][w][16]`. Outputs always are; see
     `tw_block`.
     */
    int32_t interleaved;
    /*
     A `tw_activation`, for convolutions; of kernels of bytes only for results of type `TW_F32`.
     */
    int32_t activation;
    /*
     What the activation calls so.
     */
    float low;
    /*
     What the activation calls so.
     */
    float high;
    /*
     1 to add a residual, blocked as the output, before the activation. Not for kernels of bytes.
     */
    int32_t residual;
    /*
     1 if an average counts padding too.
     */
    int32_t count_padding;
} tw_window;

/*
 Gives `bytes` bytes aligned to `align`, a power of two, or NULL. Any thread may call it, several at a
 time; it must not call the library.
 */
typedef void *(*tw_alloc_fn)(void *user, size_t bytes, size_t align);

/*
 Takes back what the other function gave, with the same numbers.
 */
typedef void (*tw_free_fn)(void *user, void *memory, size_t bytes, size_t align);

/*
 Functions that give memory.
 */
typedef struct tw_allocator {
    /*
     `sizeof (tw_allocator)`.
     */
    size_t size;
    /*
     Gives memory.
     */
    tw_alloc_fn alloc;
    /*
     Takes it back.
     */
    tw_free_fn free;
    /*
     Is given to both.
     */
    void *user;
} tw_allocator;

/*
 Is given a line without a line end, valid during the call. Any thread may call it, several at a time. It
 must not call the library, and must return: neither `longjmp` nor exceptions may pass through.
 */
typedef void (*tw_log_fn)(void *user, int32_t level, const char *line);

/*
 Settings. Zeros and NULL mean the default of each; so a structure of zeros whose `size` is set is
 the same as none at all:

 ```c
 tw_options options;
 memset(&options, 0, sizeof options);
 options.size = sizeof options;
 ```
 */
typedef struct tw_options {
    /*
     `sizeof (tw_options)`, so that the structure can grow.
     */
    size_t size;
    /*
     Bytes that a session may take for intermediate tensors, results, packed weights and the
     context of a language model; 0 for 80 % of what the machine has free.
     */
    uint64_t memory_limit;
    /*
     Name of an instruction set, as the program's `doctor` lists them; NULL for the best one, or what
     the environment variable `TILEWRIGHT_ISA` says.
     */
    const char *isa;
    /*
     Threads; 0 for one per core.
     */
    uint32_t threads;
    /*
     1 to time each operation, for `tw_session_profile`.
     */
    uint32_t profile;
    /*
     Positions that a session of a language model keeps; 0 for those of its training, at most 4096.
     */
    uint32_t context;
    /*
     What keys and values of a language model are kept as: a `tw_cache`.
     */
    int32_t cache;
    /*
     Name of the backend: `"cpu"`, `"rknn"` for the NPU of Rockchip's chips, `"opencl"`; NULL for the
     CPU, which also computes what a device does not take. One that the library was built without, or that
     is not there, is `TW_UNSUPPORTED`.
     */
    const char *backend;
} tw_options;

/*
 What a model says of an input or output.
 */
typedef struct tw_tensor_info {
    /*
     Its name; lives as long as the model.
     */
    const char *name;
    /*
     A `tw_dtype`.
     */
    int32_t dtype;
    /*
     Number of extents; -1 if the model does not say.
     */
    int32_t rank;
    /*
     Extents, slowest first; -1 for one that the model leaves open.
     */
    int64_t dims[TW_MAX_RANK];
} tw_tensor_info;

/*
 A result: memory of the session.
 */
typedef struct tw_tensor {
    /*
     A `tw_dtype`.
     */
    int32_t dtype;
    /*
     Number of extents.
     */
    int32_t rank;
    /*
     Extents, slowest first.
     */
    int64_t dims[TW_MAX_RANK];
    /*
     The elements, contiguous.
     */
    const void *data;
    /*
     Their bytes.
     */
    size_t bytes;
} tw_tensor;

/*
 Time spent in one operation.
 */
typedef struct tw_profile_row {
    /*
     The tensor it computes.
     */
    const char *name;
    /*
     The operator.
     */
    const char *op;
    /*
     The kernel.
     */
    const char *kernel;
    /*
     Seconds over all calls.
     */
    double seconds;
    /*
     Calls.
     */
    uint64_t calls;
    /*
     Multiply-adds of one call.
     */
    uint64_t macs;
} tw_profile_row;

/*
 How the next token is chosen. Zeros mean: the most probable token each time.
 */
typedef struct tw_sampling {
    /*
     `sizeof (tw_sampling)`.
     */
    size_t size;
    /*
     Where the random numbers begin.
     */
    uint64_t seed;
    /*
     Divides the logits before the draw; 0 takes the most probable token.
     */
    float temperature;
    /*
     The probability that the tokens which may be drawn have together; 0 or 1 for no limit.
     */
    float top_p;
    /*
     Smallest probability of a token that may be drawn, as a part of that of the best; 0 for none.
     */
    float min_p;
    /*
     Divides positive logits of tokens that came before; 0 or 1 for none.
     */
    float repeat_penalty;
    /*
     Subtracted from the logits of tokens that came before.
     */
    float presence_penalty;
    /*
     Subtracted from the logits of tokens as many times as they came before.
     */
    float frequency_penalty;
    /*
     Tokens that may be drawn, the most probable ones; 0 for all.
     */
    uint32_t top_k;
    /*
     How many tokens back the penalties look; 0 for 64.
     */
    uint32_t penalty_window;
} tw_sampling;

/*
 What is generated, and when it ends. Zeros and NULL mean the default of each.
 */
typedef struct tw_generation {
    /*
     `sizeof (tw_generation)`.
     */
    size_t size;
    /*
     Most tokens; 0 for as many as the context has room for.
     */
    size_t max_tokens;
    /*
     Texts that end it, and are not part of it.
     */
    const char *const *stop;
    /*
     How many there are.
     */
    size_t stop_count;
    /*
     1 to go on behind tokens that end a text.
     */
    uint32_t ignore_end;
    /*
     1 to forget the older half of the context when it is full, and go on.
     */
    uint32_t context_shift;
    /*
     Tokens at the beginning that are never forgotten.
     */
    size_t keep;
} tw_generation;

/*
 Is given each token, and the text that can be shown now: `length` bytes of whole UTF-8 characters,
 perhaps none, without a zero byte at the end, valid during the call. `token` is -1 for text that was
 held back and comes at the very end. Anything but 0 ends the generation. It must return: neither
 `longjmp` nor exceptions may pass through. Calls on the same session give `TW_BUSY` in it.
 */
typedef int32_t (*tw_token_fn)(void *user, int32_t token, const char *text, size_t length);

/*
 Something said in a conversation.
 */
typedef struct tw_message {
    /*
     Who says it: `"system"`, `"user"` or `"assistant"`.
     */
    const char *role;
    /*
     What is said.
     */
    const char *content;
} tw_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of the interface of the library that is linked: programs work with it if it equals
 `TW_ABI_VERSION`. It grows when a function or a structure changes in a way that old programs cannot
 use, and not when something is added. Any thread may call it.
 */
uint32_t tw_abi_version(void);

/*
 The version of the library: `"0.1.0"`; that of the header is `TW_VERSION`. Never NULL, never to be freed.
 Any thread may call it.
 */
const char *tw_version(void);

/*
 The name of a status: `"TW_OK"` and so on; `"TW_UNKNOWN"` for a number that is none. Never NULL,
 never to be freed.

 Any thread may call it, several at a time.
 */
const char *tw_status_name(int32_t status);

/*
 What was wrong in the last call of this thread that failed: one line without a line end, empty
 before the first. Never NULL, never to be freed; valid until the next call of this thread that fails.
 Libraries without an operating system have one for all threads.
 */
const char *tw_last_error(void);

/*
 Frees a kernel; what it was packed to and its operands are the caller's. NULL is nothing to do. A kernel
 in memory of the caller must be freed too: with a library that has an allocator, plans have lists.

 No other call may use it then; any thread may be the one that frees it.

 # Safety
 `kernel` is NULL or a kernel that is not freed yet, and no other call uses it.
 */
void tw_kernel_free(struct tw_kernel *kernel);

/*
 Bytes of the operands of a kernel. Any thread may call it. Gives `TW_INVALID_ARGUMENT` for NULL.

 # Safety
 `kernel` is NULL or a kernel; `out` is NULL or writable.
 */
enum tw_status tw_kernel_sizes_of(const struct tw_kernel *kernel, struct tw_kernel_sizes *out);

/*
 Brings weights and bias into the order in which the kernel reads them, once, to `bytes` bytes at
 `packed`: as many as `tw_kernel_sizes_of` says, aligned to 4 bytes, 64 being faster. They hold for
 kernels made with the same parameters on the same machine; do not store them. `weights` may be freed
 after. Any thread may call it.

 Gives `TW_BUFFER_TOO_SMALL` if there are fewer weights or fewer bytes than needed, `TW_INVALID_ARGUMENT`
 for weights that cannot be, such as zero points out of range; what lies at `packed` is then undefined.

 # Safety
 `kernel` is NULL or a kernel; `weights` is NULL or as its type says, with pointers that are NULL or
 readable for as many elements as said, `bias` for one per column or output channel; `packed` is NULL or
 writable for `bytes` bytes.
 */
enum tw_status tw_kernel_pack(const struct tw_kernel *kernel,
                              const struct tw_weights *weights,
                              void *packed,
                              size_t bytes);

/*
 Runs a kernel on the calling thread. It allocates nothing, takes no lock and starts no thread.

 Gives `TW_INVALID_ARGUMENT` for an operand that is NULL, not aligned, or overlaps what is written, and
 `TW_BUFFER_TOO_SMALL` for one with too few bytes; nothing is then written.

 # Safety
 `kernel` is NULL or a kernel; `operands` is NULL or as its type says, with memory that is readable (`y`
 and `scratch` writable) for as many bytes as said; `packed` was made by a kernel of the same parameters;
 no other thread uses `y` or `scratch`.
 */
enum tw_status tw_kernel_run(const struct tw_kernel *kernel,
                             const struct tw_operands *operands);

/*
 Makes a kernel of a product of floats.

 `memory` is where it lies: at least `TW_KERNEL_BYTES` bytes, aligned to `TW_KERNEL_ALIGN`, that stay as
 long as the kernel is used; or NULL and 0, and the library takes some. `*out` is to be freed with
 `tw_kernel_free`.

 Gives `TW_INVALID_ARGUMENT` for sizes of 0 and unknown names, `TW_SHAPE` for sizes beyond memory,
 `TW_BUFFER_TOO_SMALL`, `TW_OUT_OF_MEMORY`. Any thread may call it.

 # Safety
 `gemm` is NULL or as its type says; `memory` is NULL or writable for `bytes` bytes; `out` is NULL or
 writable.
 */
enum tw_status tw_sgemm_new(const struct tw_gemm *gemm,
                            void *memory,
                            size_t bytes,
                            struct tw_kernel **out);

/*
 Makes a kernel of a product of bytes. `quant` says types and zero points; scales are given with the
 weights. All else is as at `tw_sgemm_new`.

 Any thread may call it, several at a time.

 # Safety
 `gemm` and `quant` are NULL or as their types say; `memory` is NULL or writable for `bytes` bytes; `out`
 is NULL or writable.
 */
enum tw_status tw_qgemm_new(const struct tw_gemm *gemm,
                            const struct tw_quant *quant,
                            void *memory,
                            size_t bytes,
                            struct tw_kernel **out);

/*
 Rows and columns of the output. Gives `TW_INVALID_ARGUMENT` if the window does not fit the input.

 Any thread may call it, several at a time.

 # Safety
 `window` is NULL or as its type says; `rows` and `columns` are NULL or writable.
 */
enum tw_status tw_window_output(const struct tw_window *window, size_t *rows, size_t *columns);

/*
 Makes a kernel of a convolution of floats, of any number of groups but as many as channels (see
 `tw_depthwise_new`). 3 x 3 filters at stride 1 may be computed by Winograd's algorithm.
 `memory` and errors are as at `tw_sgemm_new`.

 Any thread may call it, several at a time.

 # Safety
 `window` is NULL or as its type says; `memory` is NULL or writable for `bytes` bytes; `out` is NULL or
 writable.
 */
enum tw_status tw_conv_new(const struct tw_window *window,
                           void *memory,
                           size_t bytes,
                           struct tw_kernel **out);

/*
 Makes a kernel of a depthwise convolution of floats: each channel has a filter of its own. `groups` is
 not read. `memory` and errors are as at `tw_sgemm_new`.

 Any thread may call it, several at a time.

 # Safety
 As `tw_conv_new`.
 */
enum tw_status tw_depthwise_new(const struct tw_window *window,
                                void *memory,
                                size_t bytes,
                                struct tw_kernel **out);

/*
 Makes a kernel of a pooling of floats. `op` is a `tw_pooling`; `memory` and errors are as at
 `tw_sgemm_new`.

 Any thread may call it, several at a time.

 # Safety
 As `tw_conv_new`.
 */
enum tw_status tw_pool_new(const struct tw_window *window,
                           int32_t op,
                           void *memory,
                           size_t bytes,
                           struct tw_kernel **out);

/*
 Makes a kernel of a convolution of bytes. Groups have whole blocks of 16 channels. `quant` says types and
 zero points; scales are given with the weights. `memory` and errors are as at `tw_sgemm_new`, and
 `TW_UNSUPPORTED` for other groups.

 Any thread may call it, several at a time.

 # Safety
 `window` and `quant` are NULL or as their types say; `memory` is NULL or writable for `bytes` bytes; `out`
 is NULL or writable.
 */
enum tw_status tw_qconv_new(const struct tw_window *window,
                            const struct tw_quant *quant,
                            void *memory,
                            size_t bytes,
                            struct tw_kernel **out);

/*
 Makes a kernel of a depthwise convolution of bytes, with a result of bytes. All else is as at
 `tw_qconv_new`; `groups` is not read.

 Any thread may call it, several at a time.

 # Safety
 As `tw_qconv_new`.
 */
enum tw_status tw_qdepthwise_new(const struct tw_window *window,
                                 const struct tw_quant *quant,
                                 void *memory,
                                 size_t bytes,
                                 struct tw_kernel **out);

/*
 Makes a kernel of a pooling of bytes: input and output have the type `x_type`. `op` is a `tw_pooling`.
 For an average, `scale` is that of the input divided by that of the output, 1 if they are the same;
 zero points are those of `quant`, whose other members are not read.

 Any thread may call it, several at a time.

 # Safety
 As `tw_qconv_new`.
 */
enum tw_status tw_qpool_new(const struct tw_window *window,
                            int32_t op,
                            const struct tw_quant *quant,
                            float scale,
                            void *memory,
                            size_t bytes,
                            struct tw_kernel **out);

/*
 Rearranges `[n][h][w][c]` (or, with `TW_PLANAR`, `[n][c][h][w]`) to blocked,
 `[n][c / 16 rounded up][h][w][16]`, or back with `TW_UNBLOCK`. Channels that fill up the last block are 0.
 `element` is the size of an element in bytes, 1 or 4; `shape` is n, c, h, w. A plain tensor has
 `n * c * h * w` elements, a blocked one `tw_blocked_count`.

 Gives `TW_INVALID_ARGUMENT`, and `TW_BUFFER_TOO_SMALL` if `x` or `y` has fewer bytes. Any thread may
 call it.

 # Safety
 `shape` is NULL or four numbers; `x` is NULL or readable for `x_bytes` bytes, `y` NULL or writable for
 `y_bytes` bytes; they do not overlap.
 */
enum tw_status tw_block(uint32_t flags,
                        size_t element,
                        const size_t *shape,
                        const void *x,
                        size_t x_bytes,
                        void *y,
                        size_t y_bytes);

/*
 Elements of a blocked tensor of the shape n, c, h, w; 0 for NULL, and for one beyond memory.

 Any thread may call it, several at a time.

 # Safety
 `shape` is NULL or four numbers.
 */
size_t tw_blocked_count(const size_t *shape);

/*
 Sets the functions that give all memory of the library: that of models, sessions and results. Code of
 others that it calls (threads and mapped files of the system, an NPU's library) has its own. To be called
 first of all, before any other function of the library and from one thread; without it, it is `malloc`.
 Where the function gives none, a call ends with `TW_OUT_OF_MEMORY`.

 Gives `TW_INVALID_ARGUMENT` if a function is NULL, `TW_STATE` if the library has memory already.

 # Safety
 `allocator` is NULL or as its type says; its functions may be called by any thread, until the process ends.
 */
enum tw_status tw_set_allocator(const struct tw_allocator *allocator);

/*
 Sets what is called with lines about the library's work, in the whole process; NULL for nothing, as it is
 at first. When it returns no thread is in the function that was set before. Any thread may call it, but
 not from that function. Without a function the library writes nothing anywhere.

 # Safety
 `tell` may be called with `user` by any thread, until it is replaced.
 */
void tw_set_log(tw_log_fn tell,
                void *user);

/*
 Loads a model from a file, whose content tells which kind it is. The file is mapped where that is
 possible, and must not change while the model or a session of it is in use.

 `options` may be NULL. They hold for all sessions of the model.

 Gives `TW_IO`, `TW_FORMAT`, `TW_UNSUPPORTED`, `TW_OUT_OF_MEMORY` or `TW_INVALID_ARGUMENT`.

 Any thread may call it, several at a time.

 # Safety
 `path` is NULL or ends with a zero byte; `options` is NULL or as its type says; `out` is NULL or
 writable.
 */
enum tw_status tw_model_load(const char *path,
                             const struct tw_options *options,
                             struct tw_model **out);

/*
 Loads a model from `bytes` bytes of memory. They are copied and may be freed after, unless `flags`
 has `TW_BORROW`. An ONNX model with data in other files cannot be loaded so.

 `options` and errors are as those of `tw_model_load`.

 Any thread may call it, several at a time.

 # Safety
 `data` is NULL or readable for `bytes` bytes, with `TW_BORROW` as long as it says; the rest is as
 at `tw_model_load`.
 */
enum tw_status tw_model_from_memory(const void *data,
                                    size_t bytes,
                                    uint32_t flags,
                                    const struct tw_options *options,
                                    struct tw_model **out);

/*
 Frees a model; sessions of it may go on. NULL is nothing to do.

 No other call may use it then; any thread may be the one that frees it.

 # Safety
 `model` is NULL or a model that is not freed yet, and no other call uses it.
 */
void tw_model_free(struct tw_model *model);

/*
 Which kind a model is; `TW_MODEL_NONE` for NULL.

 Any thread may call it, several at a time.
 */
enum tw_model_kind tw_model_kind_of(const struct tw_model *model);

/*
 What the metadata of an ONNX file says under `key`: `*value` becomes a text that lives as long as the
 model, such as `"tilewright.labels"` or `"tilewright.ctc.charset"`. Any thread may call it.

 Gives `TW_NOT_FOUND` if there is no such entry, as always for language models.

 # Safety
 `model` is NULL or a model; `key` is NULL or ends with a zero byte; `value` is NULL or writable.
 */
enum tw_status tw_model_metadata(const struct tw_model *model,
                                 const char *key,
                                 const char **value);

/*
 Number of inputs of a network; 0 for NULL and for language models.

 Any thread may call it, several at a time.
 */
size_t tw_model_input_count(const struct tw_model *model);

/*
 Number of outputs of a network; 0 for NULL and for language models.

 Any thread may call it, several at a time.
 */
size_t tw_model_output_count(const struct tw_model *model);

/*
 Name, type and shape of input `index`. Gives `TW_NOT_FOUND` for an index past the end.

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `out` is NULL or writable.
 */
enum tw_status tw_model_input(const struct tw_model *model,
                              size_t index,
                              struct tw_tensor_info *out);

/*
 Name, type and shape of output `index`. Gives `TW_NOT_FOUND` for an index past the end.

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `out` is NULL or writable.
 */
enum tw_status tw_model_output(const struct tw_model *model,
                               size_t index,
                               struct tw_tensor_info *out);

/*
 For output `index` of a network, if its elements are texts in the file (labels of classes): what the element
 `number`, an integer of 64 bits, stands for. `*value` becomes a text that lives as long as the model.

 Gives `TW_NOT_FOUND` for an output of numbers, and for an index or a number past the end. Any thread may
 call it.

 # Safety
 `model` is NULL or a model; `value` is NULL or writable.
 */
enum tw_status tw_model_output_text(const struct tw_model *model,
                                    size_t index,
                                    int64_t number,
                                    const char **value);

/*
 Makes a session. Its threads sleep while it does not run.

 Gives `TW_INVALID_ARGUMENT` for a language model, `TW_UNSUPPORTED` for an instruction set that the
 machine lacks.

 # Safety
 `model` is NULL or a model; `out` is NULL or writable.
 */
enum tw_status tw_session_new(const struct tw_model *model, struct tw_session **out);

/*
 Frees a session with its results. NULL is nothing to do.

 No other call may use it then; any thread may be the one that frees it.

 # Safety
 `session` is NULL or a session that is not freed yet, and no other call uses it.
 */
void tw_session_free(struct tw_session *session);

/*
 The index of the input called `name`, for the functions that want one.

 Gives `TW_NOT_FOUND`.

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `name` is NULL or ends with a zero byte; `out` is NULL or writable.
 */
enum tw_status tw_model_find_input(const struct tw_model *model, const char *name, size_t *out);

/*
 Sets input `index` to a copy of `bytes` bytes at `data`: contiguous elements of type `dtype` (a
 `tw_dtype`) and `rank` extents `dims`, slowest first. It stays until it is set again.

 Gives `TW_NOT_FOUND` for an index past the end; `TW_TYPE` and `TW_SHAPE`, with what was expected
 and what was given, if the value does not fit the model or `bytes` not the extents.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `session` is NULL or a session; `dims` is NULL or readable for `rank` numbers, `data` for `bytes`
 bytes.
 */
enum tw_status tw_session_set_input(const struct tw_session *session,
                                    size_t index,
                                    int32_t dtype,
                                    size_t rank,
                                    const int64_t *dims,
                                    const void *data,
                                    size_t bytes);

/*
 As `tw_session_set_input`, but each run reads `data` anew. It must stay readable until the input
 is set again or the session freed, and may be written between runs.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 As `tw_session_set_input`, and `data` as long as said above.
 */
enum tw_status tw_session_bind_input(const struct tw_session *session,
                                     size_t index,
                                     int32_t dtype,
                                     size_t rank,
                                     const int64_t *dims,
                                     const void *data,
                                     size_t bytes);

/*
 Each run that succeeds copies output `index` to `data` too; NULL ends that. If the output of a run
 is larger than `bytes`, the run gives `TW_BUFFER_TOO_SMALL` and writes to no bound buffer.

 Gives `TW_NOT_FOUND` for an index past the end.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `session` is NULL or a session; `data` is NULL or writable for `bytes` bytes until it is bound
 anew or the session freed.
 */
enum tw_status tw_session_bind_output(const struct tw_session *session,
                                      size_t index,
                                      void *data,
                                      size_t bytes);

/*
 Runs the network on its inputs. Results of the run before go.

 Gives `TW_STATE` if an input was never set, `TW_SHAPE` if the inputs do not fit each other,
 `TW_OUT_OF_MEMORY`, `TW_UNSUPPORTED`, `TW_BUFFER_TOO_SMALL`, `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `session` is NULL or a session; memory bound to it is as it was promised.
 */
enum tw_status tw_session_run(const struct tw_session *session);

/*
 Output `index` of the last run: type, extents and elements, which are valid until the next run or
 until the session is freed.

 Gives `TW_STATE` if there was no run or the last one failed, `TW_NOT_FOUND` for an index past the
 end, `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `session` is NULL or a session; `out` is NULL or writable.
 */
enum tw_status tw_session_output(const struct tw_session *session,
                                 size_t index,
                                 struct tw_tensor *out);

/*
 Times of the operations, of a session whose model was loaded with `profile`: `*count` becomes
 their number, and `rows`, if it has room for `capacity` of at least as many, the times. Strings in
 them live until the next call of this function or until the session is freed.

 Gives `TW_BUFFER_TOO_SMALL` (with `*count` set), `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `session` is NULL or a session; `rows` is NULL or writable for `capacity` rows, `count` NULL or
 writable.
 */
enum tw_status tw_session_profile(const struct tw_session *session,
                                  struct tw_profile_row *rows,
                                  size_t capacity,
                                  size_t *count);

/*
 Makes a session with nothing in its context. The first one of a model repacks the weights.

 Gives `TW_INVALID_ARGUMENT` for a network, `TW_OUT_OF_MEMORY`, `TW_UNSUPPORTED` for an instruction
 set that the machine lacks.

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `out` is NULL or writable.
 */
enum tw_status tw_llm_new(const struct tw_model *model, struct tw_llm **out);

/*
 Frees a session. NULL is nothing to do.

 No other call may use it then; any thread may be the one that frees it.

 # Safety
 `llm` is NULL or a session that is not freed yet, and no other call uses it.
 */
void tw_llm_free(struct tw_llm *llm);

/*
 Positions that the session keeps, and those in use. Either pointer may be NULL. Gives `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session; the others are NULL or writable.
 */
enum tw_status tw_llm_context(const struct tw_llm *llm,
                              size_t *size,
                              size_t *used);

/*
 Adds `count` tokens to the context, and computes the logits behind the last one.

 Gives `TW_CONTEXT_FULL` and, for none or for numbers that are no tokens, `TW_INVALID_ARGUMENT`,
 with nothing changed; `TW_CANCELLED`, with some of the tokens in the context; `TW_NOT_FINITE`,
 `TW_OUT_OF_MEMORY`, `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session; `tokens` is NULL or readable for `count` numbers.
 */
enum tw_status tw_llm_eval(const struct tw_llm *llm,
                           const uint32_t *tokens,
                           size_t count);

/*
 Makes the context these `count` tokens, and computes the logits behind the last one. The tokens
 that the context begins with already are not computed again.

 Errors are those of `tw_llm_eval`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 As `tw_llm_eval`.
 */
enum tw_status tw_llm_prompt(const struct tw_llm *llm,
                             const uint32_t *tokens,
                             size_t count);

/*
 Forgets all positions from `position` on, and the logits. Gives `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session.
 */
enum tw_status tw_llm_truncate(const struct tw_llm *llm,
                               size_t position);

/*
 The logits behind the last token: one number for each token of the vocabulary, valid until the
 next call on this session.

 Gives `TW_STATE` if there are none, `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session; `logits` and `count` are NULL or writable.
 */
enum tw_status tw_llm_logits(const struct tw_llm *llm,
                             const float **logits,
                             size_t *count);

/*
 Sets how tokens are chosen from now on; NULL: the most probable one each time. What came before is
 forgotten by the penalties.

 Gives `TW_INVALID_ARGUMENT` for settings that mean nothing, `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session; `sampling` is NULL or as its type says.
 */
enum tw_status tw_llm_set_sampling(const struct tw_llm *llm,
                                   const struct tw_sampling *sampling);

/*
 Chooses a token by the logits behind the last one. It is not added to the context.

 Gives `TW_STATE` if there are no logits, `TW_BUSY`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session; `token` is NULL or writable.
 */
enum tw_status tw_llm_sample(const struct tw_llm *llm,
                             uint32_t *token);

/*
 Generates text behind `count` tokens, which become the context as in `tw_llm_prompt`; calls
 `each` with every token. `generation` may be NULL, and so may `finish`.

 Errors are those of `tw_llm_eval`.

 Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.

 # Safety
 `llm` is NULL or a session; `tokens` is NULL or readable for `count` numbers; `generation` is NULL
 or as its type says; `each` may be called with `user`; `finish` is NULL or writable.
 */
enum tw_status tw_llm_generate(const struct tw_llm *llm,
                               const uint32_t *tokens,
                               size_t count,
                               const struct tw_generation *generation,
                               tw_token_fn each,
                               void *user,
                               int32_t *finish);

/*
 Ends what the session is doing, from another thread: that call gives `TW_CANCELLED` within a token
 or a part of a prompt. If it does nothing, the next evaluation ends at once. NULL is nothing to do.
 */
void tw_llm_cancel(const struct tw_llm *llm);

/*
 The tokens of `length` bytes of text: `*count` becomes their number, and `tokens`, if it has room
 for `capacity` of at least as many, the tokens. To ask for the number, pass NULL and 0.

 Gives `TW_BUFFER_TOO_SMALL` (with `*count` set), `TW_INVALID_ARGUMENT` for text that is not UTF-8.

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `text` is NULL or readable for `length` bytes; `tokens` is NULL or
 writable for `capacity` numbers, `count` NULL or writable.
 */
enum tw_status tw_tokenize(const struct tw_model *model,
                           const char *text,
                           size_t length,
                           uint32_t flags,
                           uint32_t *tokens,
                           size_t capacity,
                           size_t *count);

/*
 The text of `count` tokens, without those that steer the model: `*length` becomes its bytes, and
 `text`, if it has room for `capacity` of at least as many, the text, without a zero byte at the end.
 Bytes outside UTF-8 become U+FFFD. To ask for the length, pass NULL and 0.

 Gives `TW_BUFFER_TOO_SMALL` (with `*length` set).

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `tokens` is NULL or readable for `count` numbers; `text` is NULL or
 writable for `capacity` bytes, `length` NULL or writable.
 */
enum tw_status tw_detokenize(const struct tw_model *model,
                             const uint32_t *tokens,
                             size_t count,
                             char *text,
                             size_t capacity,
                             size_t *length);

/*
 Number of tokens that a language model knows.

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `count` is NULL or writable.
 */
enum tw_status tw_vocabulary(const struct tw_model *model, size_t *count);

/*
 Whether a token ends a text: 1 or 0, and 0 for what is no token or no language model.

 Any thread may call it, several at a time.
 */
int32_t tw_is_end(const struct tw_model *model, uint32_t token);

/*
 The text of a conversation as the model's chat template has it, with the beginning of the model's
 next message behind it, to be tokenized with `TW_SPECIAL`. What people said cannot pass for tokens
 that steer the model. `*length` and `out` are as in `tw_detokenize`.

 Gives `TW_FORMAT` if the template is damaged or refuses the conversation, `TW_BUFFER_TOO_SMALL`
 (with `*length` set).

 Any thread may call it, several at a time.

 # Safety
 `model` is NULL or a model; `messages` is NULL or readable for `count` messages, whose strings end
 with a zero byte; `out` is NULL or writable for `capacity` bytes, `length` NULL or writable.
 */
enum tw_status tw_chat_text(const struct tw_model *model,
                            const struct tw_message *messages,
                            size_t count,
                            char *out,
                            size_t capacity,
                            size_t *length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TILEWRIGHT_H */
