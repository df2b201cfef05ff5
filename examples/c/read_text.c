/* Reads the line of text in a picture: read_text MODEL.onnx PICTURE.pgm
 *
 * The picture is a binary PGM ("P5") of one line, dark on light. Its height becomes that of the network's
 * input; the characters are in the model's metadata. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tilewright.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tw_last_error());
    return 1;
}

/* A number of the header; comments are skipped. */
static int header(FILE *file, long *number) {
    int c = fgetc(file);
    while (c == '#' || c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        if (c == '#') {
            while (c != '\n' && c != EOF) c = fgetc(file);
        }
        c = fgetc(file);
    }
    for (*number = 0; c >= '0' && c <= '9' && *number < 100000; c = fgetc(file)) {
        *number = *number * 10 + (c - '0');
    }
    return *number > 0 && *number < 100000;
}

static unsigned char *read_pgm(const char *path, long *width, long *height) {
    unsigned char *pixels = NULL;
    long most = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    if (fgetc(file) == 'P' && fgetc(file) == '5' && header(file, width) && header(file, height) &&
        header(file, &most) && most == 255 && *width * *height < 100000000) {
        size_t count = (size_t)(*width * *height);
        pixels = (unsigned char *)malloc(count);
        if (pixels != NULL && fread(pixels, 1, count, file) != count) {
            free(pixels);
            pixels = NULL;
        }
    }
    fclose(file);
    return pixels;
}

enum { HEIGHT = 32, SIDE = 8 };

/* The rectangle that has the ink, with a margin above and below. */
static void find_text(const unsigned char *pixels, long width, long height, long middle, long box[4]) {
    long x, y, margin;
    box[0] = width;
    box[1] = height;
    box[2] = box[3] = 0;
    for (y = 0; y < height; y++) {
        for (x = 0; x < width; x++) {
            if (pixels[y * width + x] > middle) continue;
            if (x < box[0]) box[0] = x;
            if (x >= box[2]) box[2] = x + 1;
            if (y < box[1]) box[1] = y;
            if (y >= box[3]) box[3] = y + 1;
        }
    }
    if (box[2] == 0) {
        box[0] = box[1] = 0;
        box[2] = width;
        box[3] = height;
    }
    margin = (box[3] - box[1] + 8) / 16 + 1;
    box[1] = box[1] > margin ? box[1] - margin : 0;
    box[3] = box[3] + margin < height ? box[3] + margin : height;
}

/* Scaled to the network's height by the mean of what each pixel covers; ink is 1, paper 0. */
static float *scaled(const unsigned char *pixels, long width, long height, size_t *columns) {
    long inner, all, x, y, u, v, wide, tall, lightest = 0, darkest = 255, box[4];
    float *out;
    for (u = 0; u < width * height; u++) {
        if (pixels[u] > lightest) lightest = pixels[u];
        if (pixels[u] < darkest) darkest = pixels[u];
    }
    find_text(pixels, width, height, (lightest + darkest) / 2, box);
    wide = box[2] - box[0];
    tall = box[3] - box[1];
    inner = (wide * HEIGHT + tall / 2) / tall;
    if (inner < 1) inner = 1;
    all = (inner + 2 * SIDE + 3) / 4 * 4;
    out = (float *)calloc((size_t)(all * HEIGHT), sizeof *out);
    if (out == NULL) return NULL;
    for (y = 0; y < HEIGHT; y++) {
        long top = box[1] + y * tall / HEIGHT, bottom = box[1] + (y + 1) * tall / HEIGHT;
        if (bottom == top) bottom++;
        for (x = 0; x < inner; x++) {
            long left = box[0] + x * wide / inner, right = box[0] + (x + 1) * wide / inner, sum = 0;
            if (right == left) right++;
            for (v = top; v < bottom; v++) {
                for (u = left; u < right; u++) sum += pixels[v * width + u];
            }
            out[y * all + SIDE + x] =
                ((float)lightest - (float)sum / (float)((bottom - top) * (right - left))) /
                (float)(lightest > darkest ? lightest - darkest : 1);
        }
    }
    *columns = (size_t)all;
    return out;
}

/* The likeliest class of each step; repetitions are one, and class 0 is none (greedy CTC). */
static void print_text(const tw_tensor *scores, const char *charset) {
    const float *row = (const float *)scores->data;
    size_t classes = (size_t)scores->dims[scores->rank - 1], steps, i, step, before = 0;
    if (scores->dtype != TW_F32 || classes == 0) return;
    steps = scores->bytes / sizeof(float) / classes;
    for (step = 0; step < steps; step++, row += classes) {
        size_t best = 0;
        for (i = 1; i < classes; i++) {
            if (row[i] > row[best]) best = i;
        }
        if (best != 0 && best != before) {
            /* Character `best - 1` of the charset, which is UTF-8. */
            const char *c = charset, *end;
            for (i = 1; i < best && *c != '\0'; i++) {
                do c++;
                while ((*c & 0xc0) == 0x80);
            }
            for (end = c + 1; *c != '\0' && (*end & 0xc0) == 0x80;) end++;
            if (*c != '\0') fwrite(c, 1, (size_t)(end - c), stdout);
        }
        before = best;
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    long width = 0, height = 0;
    size_t columns = 0;
    unsigned char *pixels;
    float *input;
    const char *charset;
    int64_t dims[4];
    tw_options options;
    tw_model *model = NULL;
    tw_session *session = NULL;
    tw_tensor result;
    int status = 1;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.onnx PICTURE.pgm\n", argv[0]);
        return 2;
    }
    pixels = read_pgm(argv[2], &width, &height);
    input = pixels == NULL ? NULL : scaled(pixels, width, height, &columns);
    free(pixels);
    if (input == NULL) {
        fprintf(stderr, "%s: no binary PGM with 255 levels\n", argv[2]);
        return 1;
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    dims[0] = dims[1] = 1;
    dims[2] = HEIGHT;
    dims[3] = (int64_t)columns;
    if (tw_model_load(argv[1], &options, &model) ||
        tw_model_metadata(model, "tilewright.ctc.charset", &charset)) {
        failed(argv[1]);
    } else if (tw_session_new(model, &session) ||
               tw_session_bind_input(session, 0, TW_F32, 4, dims, input,
                                     columns * HEIGHT * sizeof *input) ||
               tw_session_run(session) || tw_session_output(session, 0, &result)) {
        failed("run");
    } else {
        print_text(&result, charset);
        status = 0;
    }
    tw_session_free(session);
    tw_model_free(model);
    free(input);
    return status;
}
