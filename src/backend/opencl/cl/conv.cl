// Convolutions and pooling on [n, c, h, w]. Definitions: VEC output pixels of a row and C_OB output
// channels make a tile; STRIDE, distance of windows along a row, where it is 1 or 2, else 0; KIND, the function of
// the results.

#ifndef C_OB
#define C_OB 1
#endif
#ifndef STRIDE
#define STRIDE 0
#endif

// The input pixels under one tap for VEC neighbouring outputs: p points to the row, x is the first
// pixel's column. Pixels outside the row are `outside`.
floatv pixels(__global const float *p, int x, int step, int width, float outside)
{
#if STRIDE == 1
    if (x >= 0 && x + VEC <= width)
        return VLOAD(p + x);
#elif STRIDE == 2 && VEC > 1
    if (x >= 0 && x + 2 * VEC <= width) {
        floatv low = VLOAD(p + x), high = VLOAD(p + x + VEC);
        return (floatv)(low.even, high.even);
    }
#endif
    float s[VEC];
    for (int i = 0; i < VEC; i++) {
        int at = x + i * step;
        s[i] = (at >= 0 && at < width) ? p[at] : outside;
    }
    return VLOAD(s);
}

#define EACH_CHANNEL _Pragma("unroll") for (int i = 0; i < C_OB; i++)
#define DEF floatv t[C_OB]
#define ZERO EACH_CHANNEL t[i] = (floatv)(0.0f)
#define LOAD(row, x) floatv v = pixels(row, x, stride_w, w, 0.0f)
#define COMPUTE(weights) EACH_CHANNEL t[i] = fma((floatv)((weights)[i]), v, t[i])

// The first `left` pixels at p, and zeros.
floatv pixels_of(__global const float *p, int left)
{
    if (left >= VEC)
        return VLOAD(p);
    float s[VEC];
    for (int i = 0; i < VEC; i++)
        s[i] = i < left ? p[i] : 0.0f;
    return VLOAD(s);
}

// Weights in panels [ceil(k / C_OB)][c][f_h][f_w][C_OB], per group.
__kernel void conv(IN(float, x), IN(float, weights), IN(float, bias), IN(float, added), OUT(float, y),
    int groups, int c, int k, int h, int w, int o_h, int o_w, int f_h, int f_w, int stride_h, int stride_w,
    int dilation_h, int dilation_w, int top, int left, int has_bias, int has_added, float fa, float fb)
{
    OPEN_IN(float, x);
    OPEN_IN(float, weights);
    OPEN_IN(float, bias);
    OPEN_IN(float, added);
    OPEN_OUT(float, y);
    // c and k are channels of one group.
    int panels = (k + C_OB - 1) / C_OB;
    int ow = get_global_id(0) * VEC, oh = get_global_id(1), rest = get_global_id(2);
    int panel = rest % panels;
    rest /= panels;
    int group = rest % groups, n = rest / groups;
    if (ow >= o_w || oh >= o_h)
        return;
    x += (long)(n * groups + group) * c * h * w;
    weights += (long)(group * panels + panel) * c * f_h * f_w * C_OB;
    DEF;
    ZERO;
    int x0 = ow * stride_w - left;
    for (int ic = 0; ic < c; ic++) {
        for (int fh = 0; fh < f_h; fh++) {
            int row = oh * stride_h - top + fh * dilation_h;
            if (row < 0 || row >= h) {
                weights += f_w * C_OB;
                continue;
            }
            __global const float *p = x + (ic * h + row) * w;
            for (int fw = 0; fw < f_w; fw++) {
                LOAD(p, x0 + fw * dilation_w);
                COMPUTE(weights);
                weights += C_OB;
            }
        }
    }
    EACH_CHANNEL {
        int channel = panel * C_OB + i;
        if (channel < k) {
            channel += group * k;
            long at = (((long)n * groups * k + channel) * o_h + oh) * o_w + ow;
            floatv v = t[i];
            if (has_bias)
                v += (floatv)(bias[channel]);
            if (has_added)
                v += pixels_of(added + at, o_w - ow);
            v = function_v(v, KIND, fa, fb);
            STORE(v, y + at, 0, o_w - ow);
        }
    }
}

// The transpose: an output gathers from the inputs whose windows reach it. Weights [c][k][f_h][f_w] per
// group, as they are given.
__kernel void conv_transposed(IN(float, x), IN(float, weights), IN(float, bias), IN(float, added),
    OUT(float, y), int groups, int c, int k, int h, int w, int o_h, int o_w, int f_h, int f_w, int stride_h,
    int stride_w, int dilation_h, int dilation_w, int top, int left, int has_bias, int has_added,
    float fa, float fb)
{
    OPEN_IN(float, x);
    OPEN_IN(float, weights);
    OPEN_IN(float, bias);
    OPEN_IN(float, added);
    OPEN_OUT(float, y);
    int ow = get_global_id(0), oh = get_global_id(1), rest = get_global_id(2);
    int channel = rest % (groups * k), n = rest / (groups * k);
    if (ow >= o_w || oh >= o_h)
        return;
    int group = channel / k, own = channel % k;
    float sum = 0.0f;
    for (int fh = 0; fh < f_h; fh++) {
        int row = oh + top - fh * dilation_h;
        if (row < 0 || row % stride_h || row / stride_h >= h)
            continue;
        for (int fw = 0; fw < f_w; fw++) {
            int column = ow + left - fw * dilation_w;
            if (column < 0 || column % stride_w || column / stride_w >= w)
                continue;
            __global const float *p = x + ((long)(n * groups + group) * c * h + row / stride_h) * w
                + column / stride_w;
            __global const float *f = weights + (((long)group * c * k + own) * f_h + fh) * f_w + fw;
            for (int ic = 0; ic < c; ic++)
                sum += p[(long)ic * h * w] * f[(long)ic * k * f_h * f_w];
        }
    }
    long at = (((long)n * groups * k + channel) * o_h + oh) * o_w + ow;
    if (has_bias)
        sum += bias[channel];
    if (has_added)
        sum += added[at];
    y[at] = function1(sum, KIND, fa, fb);
}

// The windows as a matrix [c * f_h * f_w][o_h * o_w] per batch and group.
__kernel void windows(IN(float, x), OUT(float, y), int images, int c, int h, int w, int o_h, int o_w,
    int f_h, int f_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, y);
    int ow = get_global_id(0) * VEC, oh = get_global_id(1), rest = get_global_id(2);
    if (ow >= o_w || oh >= o_h || rest >= images * c * f_h * f_w)
        return;
    int fw = rest % f_w, fh = rest / f_w % f_h, plane = rest / f_w / f_h;
    int row = oh * stride_h - top + fh * dilation_h;
    floatv v = (floatv)(0.0f);
    if (row >= 0 && row < h)
        v = pixels(x + ((long)plane * h + row) * w, ow * stride_w - left + fw * dilation_w, stride_w, w, 0.0f);
    y += ((long)rest * o_h + oh) * o_w + ow;
    STORE(v, y, 0, o_w - ow);
}

// kind: 0 maximum, 1 mean of the cells inside, 2 mean of the cells inside the padded input. bottom and
// right are pads.
__kernel void pool(IN(float, x), OUT(float, y), int planes, int h, int w, int o_h, int o_w, int f_h, int f_w,
    int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left, int bottom, int right,
    int kind)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, y);
    int ow = get_global_id(0), oh = get_global_id(1), plane = get_global_id(2);
    if (ow >= o_w || oh >= o_h || plane >= planes)
        return;
    x += (long)plane * h * w;
    float sum = kind == 0 ? -INFINITY : 0.0f;
    int inside = 0, padded = 0;
    for (int fh = 0; fh < f_h; fh++) {
        int row = oh * stride_h - top + fh * dilation_h;
        for (int fw = 0; fw < f_w; fw++) {
            int column = ow * stride_w - left + fw * dilation_w;
            padded += row < h + bottom && column < w + right;
            if (row < 0 || row >= h || column < 0 || column >= w)
                continue;
            float v = x[row * w + column];
            sum = kind == 0 ? LARGER(v, sum) : sum + v;
            inside++;
        }
    }
    int cells = kind == 1 ? inside : padded;
    y[((long)plane * o_h + oh) * o_w + ow] = kind == 0 ? sum : cells ? sum / cells : 0.0f;
}
