// Element by element: functions, pairs with broadcasting, gates, rotations. Definitions: VEC; KIND, the function,
// and PAIR_KIND, that of two numbers.

__kernel void unary(IN(float, x), OUT(float, y), int n, float a, float b)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, y);
    int i = get_global_id(0) * VEC;
    if (i + VEC <= n) {
        VSTORE(function_v(VLOAD(x + i), KIND, a, b), y + i);
        return;
    }
    for (; i < n; i++)
        y[i] = function1(x[i], KIND, a, b);
}

#ifndef PAIR_KIND
#define PAIR_KIND 0
#endif

#define PAIR(T, NAME) \
    static T NAME(T a, T b, int kind) \
    { \
        switch (kind) { \
        case 0: return a + b; \
        case 1: return a - b; \
        case 2: return a * b; \
        case 3: return a / b; \
        case 4: return SMALLER(a, b); \
        case 5: return LARGER(a, b); \
        case 6: return pow(a, b); \
        default: return (a > (T)(0.0f)) ? a : a * b; \
        } \
    }
PAIR(float, pair1)
#if VEC == 1
#define pair_v pair1
#else
PAIR(floatv, pair_v)
#endif

// The result has extents d0..d3, slowest first; an operand's strides are 0 where it repeats. The last
// stride is 0 or 1.
__kernel void binary(IN(float, a), IN(float, b), OUT(float, y), int d0, int d1, int d2, int d3,
    int a0, int a1, int a2, int a3, int b0, int b1, int b2, int b3,
    float fa, float fb)
{
    OPEN_IN(float, a);
    OPEN_IN(float, b);
    OPEN_OUT(float, y);
    int i = get_global_id(0) * VEC, i2 = get_global_id(1), rest = get_global_id(2);
    int i1 = rest % d1, i0 = rest / d1;
    if (i >= d3 || i2 >= d2 || i0 >= d0)
        return;
    a += i0 * a0 + i1 * a1 + i2 * a2;
    b += i0 * b0 + i1 * b1 + i2 * b2;
    y += ((i0 * d1 + i1) * d2 + i2) * d3;
    if (i + VEC <= d3) {
        floatv va = a3 ? VLOAD(a + i) : (floatv)(a[0]), vb = b3 ? VLOAD(b + i) : (floatv)(b[0]);
        VSTORE(function_v(pair_v(va, vb, PAIR_KIND), KIND, fa, fb), y + i);
        return;
    }
    for (; i < d3; i++)
        y[i] = function1(pair1(a[i * a3], b[i * b3], PAIR_KIND), KIND, fa, fb);
}

__kernel void gated(IN(float, gate), IN(float, up), OUT(float, y), int n, float a, float b)
{
    OPEN_IN(float, gate);
    OPEN_IN(float, up);
    OPEN_OUT(float, y);
    int i = get_global_id(0) * VEC;
    if (i + VEC <= n) {
        VSTORE(function_v(VLOAD(gate + i), KIND, a, b) * VLOAD(up + i), y + i);
        return;
    }
    for (; i < n; i++)
        y[i] = function1(gate[i], KIND, a, b) * up[i];
}

// A work-item turns one pair of one head, or moves one element behind those that turn.
__kernel void rope(IN(float, x), IN(float, table), OUT(float, y), int rows, int heads, int size,
    int rotated, int half_split)
{
    OPEN_IN(float, x);
    OPEN_IN(float, table);
    OPEN_OUT(float, y);
    int p = get_global_id(0), head = get_global_id(1), row = get_global_id(2);
    int pairs = rotated / 2;
    if (p >= size - pairs || head >= heads || row >= rows)
        return;
    int at = (row * heads + head) * size;
    pair t = turn(x + at, table + row * rotated, p, pairs, half_split);
    y[at + t.first] = t.a;
    y[at + t.second] = t.b;
}

// Groups of 32 become what 8 bits hold of them.
__kernel void round_groups(IN(float, x), OUT(float, y), int n)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, y);
    int i = get_global_id(0) * 32;
    if (i >= n)
        return;
    float16 a = vload16(0, x + i), b = vload16(1, x + i);
    ROUND(a, b);
    vstore16(a, 0, y + i);
    vstore16(b, 1, y + i);
}
