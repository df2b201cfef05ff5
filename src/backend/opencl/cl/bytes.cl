// Operators on bytes, exact: sums of products in 32 bits, results as the CPU's references compute them.
// Definitions: X, W and Y, the types of activations, weights and result (char, uchar, float or int).

#pragma OPENCL FP_CONTRACT OFF

// What a sum becomes: `to` 0 bytes, 1 f32, 2 the sum.
#define FINISH(sum, scale, to, low, high, zero) \
    ((to) == 2 ? (Y)(sum) \
     : (to) == 1 ? (Y)((float)(sum) * (scale)) \
                 : (Y)clamp(convert_int_sat_rte((float)(sum) * (scale)) + (zero), low, high))

__kernel void qconv(IN(X, x), IN(W, weights), IN(int, bias), IN(int, zeros), IN(float, scales), OUT(Y, y),
    int n, int groups, int c, int k, int h, int w, int o_h, int o_w, int f_h, int f_w, int stride_h,
    int stride_w, int dilation_h, int dilation_w, int top, int left, int has_bias, int x_zero, int zero_step,
    int scale_step, int to, int low, int high, int zero)
{
    OPEN_IN(X, x);
    OPEN_IN(W, weights);
    OPEN_IN(int, bias);
    OPEN_IN(int, zeros);
    OPEN_IN(float, scales);
    OPEN_OUT(Y, y);
    int ow = get_global_id(0), oh = get_global_id(1), rest = get_global_id(2);
    int channel = rest % (groups * k), image = rest / (groups * k);
    if (ow >= o_w || oh >= o_h || image >= n)
        return;
    int group = channel / k, w_zero = zeros[channel * zero_step];
    int sum = has_bias ? bias[channel] : 0;
    weights += (long)channel * c * f_h * f_w;
    x += (long)(image * groups + group) * c * h * w;
    for (int fh = 0; fh < f_h; fh++) {
        int row = oh * stride_h - top + fh * dilation_h;
        if (row < 0 || row >= h)
            continue;
        for (int fw = 0; fw < f_w; fw++) {
            int column = ow * stride_w - left + fw * dilation_w;
            if (column < 0 || column >= w)
                continue;
            for (int ic = 0; ic < c; ic++)
                sum += ((int)x[(ic * h + row) * w + column] - x_zero)
                    * ((int)weights[(ic * f_h + fh) * f_w + fw] - w_zero);
        }
    }
    y[((long)rest * o_h + oh) * o_w + ow] = FINISH(sum, scales[channel * scale_step], to, low, high, zero);
}

// One matrix b for all rows of a; b_row and b_column are its strides.
__kernel void qmatmul(IN(X, a), IN(W, b), IN(int, bias), IN(int, zeros), IN(float, scales), OUT(Y, y), int m,
    int n, int k, int b_row, int b_column, int has_bias, int x_zero, int zero_step, int scale_step, int to,
    int low, int high, int zero)
{
    OPEN_IN(X, a);
    OPEN_IN(W, b);
    OPEN_IN(int, bias);
    OPEN_IN(int, zeros);
    OPEN_IN(float, scales);
    OPEN_OUT(Y, y);
    int column = get_global_id(0), row = get_global_id(1);
    if (column >= n || row >= m)
        return;
    int w_zero = zeros[column * zero_step], sum = has_bias ? bias[column] : 0;
    a += (long)row * k;
    b += (long)column * b_column;
    for (int i = 0; i < k; i++)
        sum += ((int)a[i] - x_zero) * ((int)b[(long)i * b_row] - w_zero);
    y[(long)row * n + column] = FINISH(sum, scales[column * scale_step], to, low, high, zero);
}

// Of `a` [outer, repeats, inner] and `b` [outer, inner]; a product has the first scale.
__kernel void qbinary(IN(X, a), IN(W, b), OUT(Y, y), int n, int repeats, int inner, int multiply, float a_scale,
    float b_scale, int a_zero, int b_zero, int zero, int low, int high)
{
    OPEN_IN(X, a);
    OPEN_IN(W, b);
    OPEN_OUT(Y, y);
    int i = get_global_id(0);
    if (i >= n)
        return;
    int left = (int)a[i] - a_zero, right = (int)b[i / inner / repeats * inner + i % inner] - b_zero;
    float result = multiply ? (float)(left * right) * a_scale : (float)left * a_scale + (float)right * b_scale;
    y[i] = (Y)clamp(convert_int_sat_rte(result) + zero, low, high);
}

// kind as in conv.cl; a mean is round(sum * (scale / cells)) + zero.
__kernel void qpool(IN(X, x), OUT(Y, y), int planes, int h, int w, int o_h, int o_w, int f_h, int f_w,
    int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left, int bottom, int right,
    int kind, int x_zero, int zero, float scale, int low, int high)
{
    OPEN_IN(X, x);
    OPEN_OUT(Y, y);
    int ow = get_global_id(0), oh = get_global_id(1), plane = get_global_id(2);
    if (ow >= o_w || oh >= o_h || plane >= planes)
        return;
    x += (long)plane * h * w;
    int sum = kind == 0 ? low : 0, inside = 0, padded = 0;
    for (int fh = 0; fh < f_h; fh++) {
        int row = oh * stride_h - top + fh * dilation_h;
        for (int fw = 0; fw < f_w; fw++) {
            int column = ow * stride_w - left + fw * dilation_w;
            padded += row < h + bottom && column < w + right;
            if (row < 0 || row >= h || column < 0 || column >= w)
                continue;
            int v = x[row * w + column];
            sum = kind == 0 ? max(sum, v) : sum + v - x_zero;
            inside++;
        }
    }
    if (kind > 0) {
        float each = divided(scale, (float)(kind == 1 ? inside : padded));
        sum = clamp(convert_int_sat_rte((float)sum * each) + zero, low, high);
    }
    y[((long)plane * o_h + oh) * o_w + ow] = (Y)sum;
}

// Element i has its scale at i / inner % axis.
__kernel void quantize(IN(float, x), IN(float, scales), IN(int, zeros), OUT(Y, y), int n, int axis, int inner,
    int low, int high)
{
    OPEN_IN(float, x);
    OPEN_IN(float, scales);
    OPEN_IN(int, zeros);
    OPEN_OUT(Y, y);
    int i = get_global_id(0);
    if (i >= n)
        return;
    int at = i / inner % axis;
    // Far beyond any byte, and not beyond what the sum holds.
    float v = clamp(divided(x[i], scales[at]), -1e6f, 1e6f);
    y[i] = (Y)clamp(convert_int_rte(v) + zeros[at], low, high);
}

__kernel void dequantize(IN(X, x), IN(float, scales), IN(int, zeros), OUT(float, y), int n, int axis, int inner)
{
    OPEN_IN(X, x);
    OPEN_IN(float, scales);
    OPEN_IN(int, zeros);
    OPEN_OUT(float, y);
    int i = get_global_id(0);
    if (i >= n)
        return;
    int at = i / inner % axis;
    y[i] = (float)((int)x[i] - zeros[at]) * scales[at];
}
