"""From a picture of one line of text to the network's input.

This file is the specification that the Rust program ports (task input
"line-image"): every step is written as plain integer/float arithmetic on a
histogram, a mask or a profile, so that it can be done the same way anywhere.

    prepare(picture) -> float32 [1, 1, 32, W], ink = 1, paper = 0, W % 4 == 0

1  alpha    composited over white:  (c*a + 255*(255-a) + 127) div 255
2  grey     a grey picture is used as it is; a coloured one is projected on the
            principal axis of its colour edges and stretched to 0..255
3  levels   paper = median; ink = a far percentile on the side that lies farther
            from the median; when that looks like no text the picture is split
            in two classes, and its rim decides which of them is paper
4  flatten  a paper level that drifts along or across the line is evened out, once
            for dark and once for light ink, where that gathers the paper's pixels
            (levels again)
5  slope    the shear (in rows per column) that packs the rows of ink best
6  box      rows of the text line (bits of neighbour lines cut off), columns of
            the ink in these rows
7  levels   again, from the pixels of the box
8  resize   the box and a margin to height 32, antialiased triangle filter

"Mask" below is the set of ink pixels, lone ones removed (despeckle).
"""
import numpy as np
from PIL import Image

HEIGHT = 32
SIDE = 8            # columns of paper added left and right
MAX_WIDTH = 4096    # of the resized line, before the sides are added


def percentile(hist, share):
    """Smallest level whose cumulative count exceeds share/100000 of all (floor)."""
    total = int(hist.sum())
    return int(np.searchsorted(np.cumsum(hist), total * share // 100000, side="right"))


def to_grey(picture):
    """Steps 1 and 2: PIL picture -> uint8 [H, W]."""
    if picture.mode in ("1", "L"):
        return np.asarray(picture.convert("L"))
    rgba = np.asarray(picture.convert("RGBA")).astype(np.int32)
    alpha = rgba[..., 3:]
    rgb = (rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
    if (rgb[..., 0] == rgb[..., 1]).all() and (rgb[..., 1] == rgb[..., 2]).all():
        return rgb[..., 0].astype(np.uint8)
    # Edges, not colours: differences of neighbouring pixels in a row.  JPEG blurs
    # the chroma, light and shade drift, but the letters' edges stay.
    edges = (rgb[:, 1:] - rgb[:, :-1]).reshape(-1, 3).astype(np.float64)
    cov = edges.T @ edges / max(1, len(edges))
    axis = np.array([0.299, 0.587, 0.114])
    for _ in range(16):                       # power iteration
        product = cov @ axis
        norm = np.sqrt((product * product).sum())
        if norm < 1e-6:                       # no edges: luma
            axis = np.array([0.299, 0.587, 0.114])
            break
        axis = product / norm
    value = rgb.reshape(-1, 3) @ axis
    low, high = value.min(), value.max()
    if high - low < 1e-6:
        return np.zeros(rgb.shape[:2], np.uint8)
    scaled = np.floor((value - low) * (255.0 / (high - low)) + 0.5)
    return scaled.reshape(rgb.shape[:2]).astype(np.uint8)


def ink_levels(grey):
    """Step 3: (paper, ink) of the whole picture, or None when it is blank."""
    hist = np.bincount(grey.ravel(), minlength=256)
    paper = percentile(hist, 50000)

    def farther(tail):
        low, high = percentile(hist, tail), percentile(hist, 100000 - tail)
        return low if paper - low >= high - paper else high

    def hangs_together(ink):
        """At least half of the mask's pixels outlive the removal of lone ones."""
        mask = ink_mask(grey, paper, ink)
        return 2 * int(despeckle(mask).sum()) >= int(mask.sum())

    ink, extreme = farther(500), farther(50)
    if 2 * abs(ink - paper) < abs(extreme - paper) and hangs_together(extreme):
        ink = extreme               # a small line on a large sheet: under 0.5 % is ink
    elif not hangs_together(ink):   # salt noise stronger than the ink: take the first
        for tail in (2000, 5000):   # larger tail that looks like strokes
            if farther(tail) != paper and hangs_together(farther(tail)):
                ink = farther(tail)
                break
    if abs(ink - paper) < 6:
        return None

    # Letters cut close cover so much that the median may be theirs, or a grey
    # between: more than 35 % ink, or fewer than 30 % of the pixels within an
    # eighth of the contrast of the median.
    near = abs(ink - paper) // 8
    around = int(hist[max(paper - near, 0):paper + near + 1].sum())
    mask = ink_mask(grey, paper, ink)
    if 20 * int(mask.sum()) > 7 * mask.size or 10 * around < 3 * grey.size:
        paper, ink = two_classes(grey, hist)
    return None if abs(ink - paper) < 6 else (paper, ink)


def two_classes(grey, hist):
    """(paper, ink): the medians of the two classes that Otsu's threshold makes.

    Paper is the class with the larger mean of five shares: those of the picture
    and of its four sides.  (A side cut through the letters must not decide alone.)
    """
    total, count = int(hist.sum()), np.cumsum(hist)
    weight = np.cumsum(hist * np.arange(256))
    inner = (count > 0) & (count < total)
    apart = (weight[-1] * count - weight * total) / total
    spread = np.where(inner, apart * apart / np.where(inner, count * (total - count), 1), -1.0)
    threshold = int(spread.argmax())                   # the first of equals
    dark = grey <= threshold
    shares = [int(part.sum()) / part.size for part in (dark, dark[0], dark[-1], dark[:, 0], dark[:, -1])]
    below, above = hist.copy(), hist.copy()
    below[threshold + 1:] = 0
    above[:threshold + 1] = 0
    below, above = percentile(below, 50000), percentile(above, 50000)
    return (below, above) if sum(shares) > 2.5 else (above, below)


def ink_mask(grey, paper, ink, twentieths=10):
    """Pixels that lie at least twentieths/20 of the way from paper to ink."""
    sign = 1 if ink < paper else -1
    return 20 * sign * (paper - grey.astype(np.int32)) >= twentieths * sign * (paper - ink)


def despeckle(mask):
    """Keep the mask pixels that have at least two of their eight neighbours set."""
    padded = np.pad(mask, 1).astype(np.uint8)
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    around = rows[:-2] + rows[1:-1] + rows[2:]          # includes the pixel itself
    return mask & (around >= 3)


def evened(grey, dark):
    """The picture less the drift of its paper, not clipped; None when it hardly drifts.

    "Paper" of a part of the picture is the level that 65 % of its pixels, from
    the ink's side, do not exceed.  Along x: blocks of columns half as wide as the
    picture is high, interpolated linearly between their centres, constant outside
    the first and last centre.  Then across y: a ramp through the centres of the
    top and the bottom sixth.  All paper comes to the level farthest from the ink,
    so that no ink is clipped.
    """
    height, width = grey.shape

    def level(part):
        low = int(part.min())
        return percentile(np.bincount(part.ravel() - low), 65000 if dark else 35000) + low

    grey = grey.astype(np.int32)
    count = max(2 * width // max(16, height), min(6, width // 16), 1)
    edges = [i * width // count for i in range(count + 1)]
    levels = [level(grey[:, a:b]) for a, b in zip(edges, edges[1:])]
    centres = [(a + b) / 2 for a, b in zip(edges, edges[1:])]
    along = np.interp(np.arange(width) + 0.5, centres, levels)
    across = np.zeros(height)
    if height >= 12:
        rest = np.floor(grey - along + 0.5).astype(np.int32)
        sixth = height // 6
        top, bottom = level(rest[:sixth]), level(rest[height - sixth:])
        at = (np.arange(height) + 0.5 - sixth / 2) / (height - sixth)      # 0 at top, 1 at bottom
        across = top + (bottom - top) * at
    if (along.max() - along.min()) + (across.max() - across.min()) < 4:
        return None
    paper = along.max() + across.max() if dark else along.min() + across.min()
    paper = min(max(paper, 0.0), 255.0)
    drift = along[None, :] + across[:, None]
    return np.floor(grey - drift + paper + 0.5).astype(np.int32)


def flatten(grey):
    """Step 4: (even picture, its levels), or None when evening out gains nothing.

    It gains when more pixels lie within an eighth of the contrast of paper than
    lie in any such range of the picture as it is.
    """
    hist = np.bincount(grey.ravel(), minlength=256)
    below = np.concatenate(([0], np.cumsum(hist)))
    best, most = None, 0
    for dark in (True, False):
        even = evened(grey, dark)
        if even is None:
            continue
        flat = np.clip(even, 0, 255).astype(np.uint8)
        levels = ink_levels(flat)
        if levels is None or (levels[1] < levels[0]) != dark:
            continue
        near = max(2, abs(levels[1] - levels[0]) // 8)
        # what was clipped is not gathered
        gathered = int((abs(even - levels[0]) <= near).sum())
        before = int((below[2 * near + 1:] - below[:-2 * near - 1]).max())
        if gathered > max(before, most):
            best, most = (flat, levels), gathered
    return best


def find_slope(mask):
    """Step 5: slope k/128 rows per column, k in -10..10, 0 unless clearly better.

    Score of a slope: the sum over rows of (mask pixels in the sheared row)^2.
    """
    ys, xs = np.nonzero(mask)                 # row by row
    if len(ys) == 0:
        return 0
    xs = xs - xs.min()
    span = int(xs.max())
    if span < 48 or span < 3 * (int(ys.max()) - int(ys.min()) + 1):
        return 0
    step = 1 + len(ys) // 4096                # every step-th pixel is enough
    ys, xs = ys[::step].astype(np.int32), xs[::step].astype(np.int32)
    offset = (10 * span + 64) // 128          # keeps the rows >= 0
    scores = {}
    for k in range(-10, 11):
        count = np.bincount(ys + ((k * xs + 64) >> 7) + offset).astype(np.int64)
        scores[k] = int((count * count).sum())
    best = max(range(-10, 11), key=lambda k: (scores[k], -abs(k), k))
    return best if scores[best] * 100 > scores[0] * 104 else 0


def shear(grey, k, paper):
    """Move column x down by k*x/128 rows (linear interpolation), paper outside."""
    if k == 0:
        return grey
    height, width = grey.shape
    extra = (abs(k) * (width - 1) + 127) // 128
    shift = k * np.arange(width) + (0 if k > 0 else 128 * extra)   # in 1/128 row, >= 0
    whole, part = shift // 128, shift % 128
    padded = np.full((height + extra + 2, width), paper, np.int32)
    padded[1:height + 1] = grey
    rows = np.arange(height + extra)[:, None] - whole[None, :]     # source row
    upper = np.clip(rows, -1, height) + 1
    lower = np.clip(rows - 1, -1, height) + 1
    cols = np.arange(width)[None, :]
    mixed = padded[upper, cols] * (128 - part) + padded[lower, cols] * part
    return ((mixed + 64) // 128).astype(np.uint8)


def text_box(mask):
    """Step 6: (top, bottom, left, right), ends exclusive, or None."""
    height = mask.shape[0]
    profile = mask.sum(axis=1)
    peak = int(profile.max(initial=0))
    if peak == 0:
        return None
    active = profile >= max(1, min(peak, 1 + peak // 100))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], active.view(np.int8), [0]))))
    runs = [(int(a), int(b), int(profile[a:b].sum())) for a, b in edges.reshape(-1, 2)]
    main = max(range(len(runs)), key=lambda i: (runs[i][2], -i))
    first, last, _ = runs[main]
    tall = last - first
    # Accents, dots and underlines join the main run, and whatever is very near; a
    # thin run at the picture's edge is a neighbour line's, a run too far off or as
    # small as a speck is none.
    gap, reach, cut = max(2, tall * 2 // 5), max(2, tall * 3 // 5), tall * 2 // 5
    near = max(1, tall // 8)
    top, bottom = first, last
    for a, b, m in reversed(runs[:main]):
        if 200 * m < tall * tall:
            continue
        if top - b > near and (top - b > gap or first - a > reach or (a == 0 and b - a <= cut)):
            break
        top = a
    for a, b, m in runs[main + 1:]:
        if 200 * m < tall * tall:
            continue
        if a - bottom > near and (a - bottom > gap or b - last > reach or (b == height and b - a <= cut)):
            break
        bottom = b
    columns = np.flatnonzero(mask[top:bottom].any(axis=0))
    return top, bottom, int(columns[0]), int(columns[-1]) + 1


def box_levels(region, paper, ink):
    """Step 7: paper and ink measured inside the box."""
    mask = ink_mask(region, paper, ink)
    inside = np.bincount(region[mask], minlength=256)
    outside = np.bincount(region[~mask], minlength=256)
    if outside.sum():
        paper_here = percentile(outside, 50000)
    else:
        paper_here = paper
    # the level that the strongest quarter of the ink pixels reach
    ink_here = percentile(inside, 25000 if ink < paper else 75000)
    if (ink_here < paper_here) != (ink < paper) or ink_here == paper_here:
        return paper, ink
    return paper_here, ink_here


def blank():
    return np.zeros((1, 1, HEIGHT, 2 * SIDE + 16), np.float32)


def prepare(picture, jitter=(0.0, 0.0)):
    """The network's input; `jitter` moves the top and bottom margin (training)."""
    grey = to_grey(picture)
    if grey.size == 0:
        return blank()
    even = flatten(grey)
    if even is not None:
        grey, levels = even
    else:
        levels = ink_levels(grey)
        if levels is None:
            return blank()
    paper, ink = levels
    k = find_slope(despeckle(ink_mask(grey, paper, ink)))
    grey = shear(grey, k, paper)
    box = text_box(despeckle(ink_mask(grey, paper, ink, 7)))
    if box is None:
        return blank()
    top, bottom, left, right = box
    paper, ink = box_levels(grey[top:bottom, left:right], paper, ink)

    # Step 8.  Margins: a sixteenth of the height above and below, a quarter at
    # the sides; at least 8 rows; paper where the box leaves the picture.
    tall = bottom - top
    side = max(1, (tall + 2) // 4)
    margin = max(1, (tall + 8) // 16)
    top -= margin + int(round(jitter[0] * tall))
    bottom += margin + int(round(jitter[1] * tall))
    if bottom - top < 8:
        lack = 8 - (bottom - top)
        top -= lack // 2
        bottom += lack - lack // 2
    left -= side
    right += side
    height, width = grey.shape
    crop = np.zeros((bottom - top, right - left), np.float32)
    y0, y1, x0, x1 = max(top, 0), min(bottom, height), max(left, 0), min(right, width)
    amount = (paper - grey[y0:y1, x0:x1].astype(np.float32)) / np.float32(paper - ink)
    crop[y0 - top:y1 - top, x0 - left:x1 - left] = np.clip(amount, 0.0, 1.0)

    # ceil-free rounding: W = floor(width * 32 / height + 1/2)
    wide = ((right - left) * HEIGHT * 2 + (bottom - top)) // (2 * (bottom - top))
    wide = min(max(wide, 8), MAX_WIDTH)
    line = np.asarray(Image.fromarray(crop).resize((wide, HEIGHT), Image.BILINEAR))
    out = np.zeros((1, 1, HEIGHT, (wide + 2 * SIDE + 3) // 4 * 4), np.float32)
    out[0, 0, :, SIDE:SIDE + wide] = line
    return out
