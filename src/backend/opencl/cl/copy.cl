// Copies of elements of T (uchar, ushort, uint or ulong: the size is what matters), with strides, and
// filling.

__kernel void copy(IN(T, x), OUT(T, y), int shift, int d0, int d1, int d2, int d3, int d4, int d5,
    int x0, int x1, int x2, int x3, int x4, int x5, int y0, int y1, int y2, int y3, int y4, int y5)
{
    OPEN_IN(T, x);
    OPEN_OUT(T, y);
    int i5 = get_global_id(0), i4 = get_global_id(1), rest = get_global_id(2);
    int i3 = rest % d3;
    rest /= d3;
    int i2 = rest % d2;
    rest /= d2;
    int i1 = rest % d1, i0 = rest / d1;
    if (i5 >= d5 || i4 >= d4 || i0 >= d0)
        return;
    y[shift + i0 * y0 + i1 * y1 + i2 * y2 + i3 * y3 + i4 * y4 + i5 * y5] =
        x[i0 * x0 + i1 * x1 + i2 * x2 + i3 * x3 + i4 * x4 + i5 * x5];
}

// All n elements become the one at `value`.
__kernel void fill(IN(T, value), OUT(T, y), int n)
{
    OPEN_IN(T, value);
    OPEN_OUT(T, y);
    int i = get_global_id(0);
    if (i < n)
        y[i] = value[0];
}
