// Copies of elements of T (uchar, ushort, uint or ulong: the size is what matters), with strides, by indices, of
// one operand or another, from a table; and filling.

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

// Slices of `inner` elements of an axis; a row of the result has `row` elements.
__kernel void gather(IN(T, x), IN(int, index), OUT(T, y), int outer, int extent, int inner, int row)
{
    OPEN_IN(T, x);
    OPEN_IN(int, index);
    OPEN_OUT(T, y);
    int i = get_global_id(0), o = get_global_id(1);
    if (i < row && o < outer)
        y[(long)o * row + i] = x[((long)o * extent + index[i / inner]) * inner + i % inner];
}

// The result has extents d0..d3, slowest first; an operand's strides are 0 where it repeats.
__kernel void choose(IN(uchar, c), IN(T, a), IN(T, b), OUT(T, y), int d0, int d1, int d2, int d3,
    int c0, int c1, int c2, int c3, int a0, int a1, int a2, int a3, int b0, int b1, int b2, int b3)
{
    OPEN_IN(uchar, c);
    OPEN_IN(T, a);
    OPEN_IN(T, b);
    OPEN_OUT(T, y);
    int i3 = get_global_id(0), i2 = get_global_id(1), rest = get_global_id(2);
    int i1 = rest % d1, i0 = rest / d1;
    if (i3 >= d3 || i2 >= d2 || i0 >= d0)
        return;
    y[((i0 * d1 + i1) * d2 + i2) * d3 + i3] = c[i0 * c0 + i1 * c1 + i2 * c2 + i3 * c3]
        ? a[i0 * a0 + i1 * a1 + i2 * a2 + i3 * a3]
        : b[i0 * b0 + i1 * b1 + i2 * b2 + i3 * b3];
}

// What a table of 256 has for each byte.
__kernel void look_up(IN(uchar, x), IN(uchar, table), OUT(uchar, y), int n)
{
    OPEN_IN(uchar, x);
    OPEN_IN(uchar, table);
    OPEN_OUT(uchar, y);
    int i = get_global_id(0);
    if (i < n)
        y[i] = table[x[i]];
}
