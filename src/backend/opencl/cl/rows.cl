// Rows become a number or other rows: softmax, norms, reductions, other lengths. Definitions: VEC; LANES, work-items
// that share a row.

// What the work-items of a row have found, together.
#if LANES > 1
#define TOGETHER(NAME, a, b, result) \
    float NAME(float v, __local float *shared) \
    { \
        int lane = get_local_id(0); \
        shared[lane] = v; \
        for (int half_ = LANES / 2; half_ > 0; half_ /= 2) { \
            barrier(CLK_LOCAL_MEM_FENCE); \
            if (lane < half_) { \
                float a = shared[lane], b = shared[lane + half_]; \
                shared[lane] = result; \
            } \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        float all = shared[0]; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        return all; \
    }
TOGETHER(total, a, b, a + b)
TOGETHER(product, a, b, a * b)
TOGETHER(largest, a, b, LARGER(a, b))
TOGETHER(smallest, a, b, SMALLER(a, b))
#define LANE get_local_id(0)
#define ROW get_group_id(0)
#define SHARED __local float shared[LANES]
#else
#define total(v, shared) (v)
#define product(v, shared) (v)
#define largest(v, shared) (v)
#define smallest(v, shared) (v)
#define LANE 0
#define ROW get_global_id(0)
#define SHARED
#endif

__kernel void softmax(IN(float, x), OUT(float, y), int outer, int axis, int inner, int logarithm,
    int guarded)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, y);
    SHARED;
    int i = ROW, o = get_global_id(1);
    if (i >= inner || o >= outer)
        return;
    x += (long)o * axis * inner + i;
    y += (long)o * axis * inner + i;
    float most = -INFINITY, sum = 0.0f;
    for (int k = LANE; k < axis; k += LANES)
        most = fmax(most, x[k * inner]);
    most = largest(most, shared);
    for (int k = LANE; k < axis; k += LANES) {
        float e = exp(x[k * inner] - most);
        if (!logarithm)
            y[k * inner] = e;
        sum += e;
    }
    sum = total(sum, shared);
    if (guarded && isnan(sum)) {
        for (int k = LANE; k < axis; k += LANES)
            y[k * inner] = 0.0f;
        return;
    }
    if (logarithm) {
        float l = log(sum);
        for (int k = LANE; k < axis; k += LANES)
            y[k * inner] = x[k * inner] - most - l;
        return;
    }
    float inverse = 1.0f / sum;
    for (int k = LANE; k < axis; k += LANES)
        y[k * inner] *= inverse;
}

float sum_of(floatv v)
{
    float s[VEC], all = 0.0f;
    VSTORE(v, s);
    for (int i = 0; i < VEC; i++)
        all += s[i];
    return all;
}

// A row r has its scale at row r % groups of [groups, parts]; each of the parts covers len / parts
// elements. parts 0: no scale.
__kernel void norm(IN(float, x), IN(float, scale), IN(float, bias), OUT(float, y), __local float *shared,
    int len, int groups, int parts, int has_bias, int centred, float epsilon)
{
    OPEN_IN(float, x);
    OPEN_IN(float, scale);
    OPEN_IN(float, bias);
    OPEN_OUT(float, y);
    int lane = get_local_id(0), r = get_global_id(1);
    x += (long)r * len;
    y += (long)r * len;
    float mean = 0.0f;
    int whole = len / VEC * VEC;
    if (centred) {
        floatv s = (floatv)(0.0f);
        float more = 0.0f;
        for (int i = lane * VEC; i < whole; i += LANES * VEC)
            s += VLOAD(x + i);
        for (int i = whole + lane; i < len; i += LANES)
            more += x[i];
        mean = total(sum_of(s) + more, shared) / len;
    }
    floatv s = (floatv)(0.0f);
    float more = 0.0f;
    for (int i = lane * VEC; i < whole; i += LANES * VEC) {
        floatv d = VLOAD(x + i) - mean;
        s += d * d;
    }
    for (int i = whole + lane; i < len; i += LANES)
        more += (x[i] - mean) * (x[i] - mean);
    float inverse = 1.0f / sqrt(total(sum_of(s) + more, shared) / len + epsilon);
    if (parts == len) {
        scale += (long)(r % groups) * len;
        bias += (long)(r % groups) * len;
        for (int i = lane * VEC; i < whole; i += LANES * VEC) {
            floatv v = (VLOAD(x + i) - mean) * inverse * VLOAD(scale + i);
            VSTORE(has_bias ? v + VLOAD(bias + i) : v, y + i);
        }
        for (int i = whole + lane; i < len; i += LANES) {
            float v = (x[i] - mean) * inverse * scale[i];
            y[i] = has_bias ? v + bias[i] : v;
        }
        return;
    }
    for (int i = lane; i < len; i += LANES) {
        float v = (x[i] - mean) * inverse;
        if (parts) {
            int at = (r % groups) * parts + (int)((long)i * parts / len);
            v *= scale[at];
            if (has_bias)
                v += bias[at];
        }
        y[i] = v;
    }
}

// kind: 0 sum, 1 mean, 2 product, 3 maximum, 4 minimum, 5 L1, 6 L2, 7 sum of squares.
__kernel void reduce(IN(float, x), OUT(float, y), int outer, int axis, int inner, int kind)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, y);
    SHARED;
    int i = ROW, o = get_global_id(1);
    if (i >= inner || o >= outer)
        return;
    x += (long)o * axis * inner + i;
    float sum = kind == 2 ? 1.0f : kind == 3 ? -INFINITY : kind == 4 ? INFINITY : 0.0f;
    for (int k = LANE; k < axis; k += LANES) {
        float v = x[k * inner];
        switch (kind) {
        case 2: sum *= v; break;
        case 3: sum = LARGER(v, sum); break;
        case 4: sum = SMALLER(v, sum); break;
        case 5: sum += fabs(v); break;
        case 6:
        case 7: sum += v * v; break;
        default: sum += v;
        }
    }
    switch (kind) {
    case 2: sum = product(sum, shared); break;
    case 3: sum = largest(sum, shared); break;
    case 4: sum = smallest(sum, shared); break;
    default: sum = total(sum, shared);
    }
    if (LANE == 0)
        y[(long)o * inner + i] = kind == 1 ? sum / axis : kind == 6 ? sqrt(sum) : sum;
}

// Each element is a sum of `taps` elements of the axis, by a table; a first index of -1 stands for `outside`. A row
// of the result has `row` elements, `inner` of them for each of the axis.
__kernel void resize(IN(float, x), IN(int, index), IN(float, weight), OUT(float, y), int outer, int extent,
    int inner, int row, int taps, float outside)
{
    OPEN_IN(float, x);
    OPEN_IN(int, index);
    OPEN_IN(float, weight);
    OPEN_OUT(float, y);
    int i = get_global_id(0), o = get_global_id(1);
    if (i >= row || o >= outer)
        return;
    x += (long)o * extent * inner + i % inner;
    index += i / inner * taps;
    weight += i / inner * taps;
    float sum = index[0] < 0 ? outside : 0.0f;
    for (int t = 0; t < taps && index[0] >= 0; t++)
        sum += weight[t] * x[index[t] * inner];
    y[(long)o * row + i] = sum;
}
