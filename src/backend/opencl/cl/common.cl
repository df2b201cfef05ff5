// What all kernels share. Definitions at build time: VEC, elements of a vector (1, 2, 4, 8 or 16).
//
// An operand is a piece of memory and the byte at which it begins in it: IN and OUT declare both, OPEN
// gives the pointer that the kernel uses.

#ifndef VEC
#define VEC 4
#endif
#ifndef KIND
#define KIND 0
#endif

#define IN(T, x) __global const T *x##_memory, ulong x##_at
#define OUT(T, x) __global T *x##_memory, ulong x##_at
#define OPEN_IN(T, x) __global const T *x = (__global const T *)((__global const char *)x##_memory + x##_at)
#define OPEN_OUT(T, x) __global T *x = (__global T *)((__global char *)x##_memory + x##_at)

// Kernels of which a token needs many have one structure with all their numbers, as drivers take time for
// each argument: it is the last argument, `of`, and begins with the bytes at which the operands begin, in
// their order. OF declares such an operand, OPEN_OF gives its pointer.
#define OF(T, x) __global T *x##_memory
#define OPEN_OF(T, x) __global T *x = (__global T *)((__global const char *)x##_memory + of.x)

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if VEC == 1
typedef float floatv;
#define VLOAD(p) (*(p))
#define VSTORE(v, p) (*(p) = (v))
#else
typedef JOIN(float, VEC) floatv;
#define VLOAD(p) JOIN(vload, VEC)(0, p)
#define VSTORE(v, p) JOIN(vstore, VEC)(v, 0, p)
#endif

// Lanes `low` to `high` of a vector, of which others may store the rest.
#define STORE(v, p, low, high) \
    if ((low) <= 0 && (high) >= VEC) { \
        VSTORE(v, p); \
    } else { \
        float s_[VEC]; \
        VSTORE(v, s_); \
        for (int l_ = max(low, 0); l_ < min(high, VEC); l_++) \
            (p)[l_] = s_[l_]; \
    }

// The larger and the smaller of two numbers or vectors; NaN if either is.
#define LARGER(a, b) ((((a) > (b)) | ((a) != (a))) ? (a) : (b))
#define SMALLER(a, b) ((((a) < (b)) | ((a) != (a))) ? (a) : (b))

// Functions of one number by their codes (src/backend/opencl/ops/codes.rs); 0 is none. Which one a kernel computes,
// KIND, is known when it is built, so that it has the code of no other.
#define FUNCTIONS(T, NAME) \
    static T NAME##_sigmoid(T x) { return 1.0f / (1.0f + exp(-x)); } \
    static T NAME##_softplus(T x) { return fmax(x, (T)(0.0f)) + log1p(exp(-fabs(x))); } \
    static T NAME(T x, int kind, float a, float b) \
    { \
        const T zero = (T)(0.0f), one = (T)(1.0f), va = (T)(a), vb = (T)(b); \
        switch (kind) { \
        case 1: return (x < zero) ? zero : x; \
        case 2: { T low = (x < va) ? va : x; return (low > vb) ? vb : low; } \
        case 3: return (x > zero) ? x : x * va; \
        case 4: return NAME##_sigmoid(x); \
        case 5: return tanh(x); \
        case 6: return clamp(va * x + vb, zero, one); \
        case 7: return x * clamp(x / 6.0f + 0.5f, zero, one); \
        case 8: return x * NAME##_sigmoid(va * x); \
        case 9: return x * 0.5f * (1.0f + erf(x * 0.70710678118654752f)); \
        case 10: return x * 0.5f * (1.0f + tanh(0.79788456080286536f * (x + 0.044715f * x * x * x))); \
        case 11: return (x > zero) ? x : va * expm1(x); \
        case 12: return exp(x); \
        case 13: return log(x); \
        case 14: return sqrt(x); \
        case 15: return 1.0f / x; \
        case 16: return -x; \
        case 17: return fabs(x); \
        case 18: return floor(x); \
        case 19: return ceil(x); \
        case 20: return rint(x); \
        case 21: return x * x; \
        case 22: return erf(x); \
        case 23: return NAME##_softplus(x); \
        case 24: return x / (1.0f + fabs(x)); \
        case 25: return x * tanh(NAME##_softplus(x)); \
        case 26: return sin(x); \
        case 27: return cos(x); \
        case 28: return atan(x); \
        default: return x; \
        } \
    }

FUNCTIONS(float, function1)
#if VEC == 1
#define function_v function1
#else
FUNCTIONS(floatv, function_v)
#endif

// a / b as IEEE 754 rounds it; the division of devices may be 2.5 units of the last place off. The steps are those
// of processors without a divider (Markstein 1990): reciprocal and quotient are corrected by what they leave
// over, which fma gives exactly.
float divided(float a, float b)
{
    float y = 1.0f / b;
    y = fma(fma(-b, y, 1.0f), y, y);
    float q = a * y;
    q = fma(fma(-b, q, a), y, q);
    q = fma(fma(-b, q, a), y, q);
    return isfinite(q) ? q : a / b;
}

// The 32 numbers of two vectors become what 8 bits hold of them, as activations do on the CPU before they
// meet weights in blocks: the largest magnitude is 127 steps.
#define ROUND(a, b) \
    { \
        float16 m16 = fmax(fabs(a), fabs(b)); \
        float8 m8 = fmax(m16.lo, m16.hi); \
        float4 m4 = fmax(m8.lo, m8.hi); \
        float2 m2 = fmax(m4.lo, m4.hi); \
        float most = fmax(m2.x, m2.y), to_steps = divided(127.0f, most), step = divided(most, 127.0f); \
        if (any(isnan(a)) || any(isnan(b)) || isinf(most)) \
            to_steps = NAN; \
        else if (most < 0x1p-100f) \
            to_steps = 0.0f; \
        a = rint(a * to_steps) * step; \
        b = rint(b * to_steps) * step; \
    }

// Elements of a head after its rotation: pair `p` of those that turn, or, behind `pairs`, one that does not.
typedef struct {
    int first, second;
    float a, b;
} pair;

pair turn(__global const float *x, __global const float *table, int p, int pairs, int half_split)
{
    if (p >= pairs)
        return (pair){p + pairs, p + pairs, x[p + pairs], x[p + pairs]};
    int first = half_split ? p : 2 * p, second = half_split ? p + pairs : 2 * p + 1;
    float u = x[first], v = x[second], c = table[p], s = table[pairs + p];
    return (pair){first, second, u * c - v * s, u * s + v * c};
}
