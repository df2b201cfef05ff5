/* What a picture shows: classify MODEL.onnx LABELS.txt PICTURE.ppm
 *
 * The picture is a binary PPM ("P6") of the size that the network wants; LABELS has a name per line. Values
 * 0 to 255 are divided by `SCALE`, which depends on how the network was trained. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tilewright.h>

#ifndef SCALE
#define SCALE 1.0f
#endif

enum { SHOWN = 3 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tw_last_error());
    return 1;
}

/* The pixels as the network's input: `[1][3][h][w]` or `[1][h][w][3]`, whichever it has. */
static float *read_picture(const char *path, const tw_tensor_info *info, int64_t dims[4]) {
    FILE *file = fopen(path, "rb");
    unsigned width = 0, height = 0;
    int planar = info->rank == 4 && info->dims[1] == 3;
    unsigned char pixel[3];
    float *out = NULL;
    size_t i, c, count;
    if (file == NULL) return NULL;
    if (info->rank == 4 && fscanf(file, "P6 %u %u 255", &width, &height) == 2 && fgetc(file) != EOF &&
        width > 0 && height > 0 && width < 10000 && height < 10000) {
        count = (size_t)width * height;
        dims[0] = 1;
        dims[planar ? 1 : 3] = 3;
        dims[planar ? 2 : 1] = height;
        dims[planar ? 3 : 2] = width;
        out = (float *)calloc(3 * count, sizeof *out);
        for (i = 0; out != NULL && i < count; i++) {
            if (fread(pixel, 1, 3, file) != 3) break;
            for (c = 0; c < 3; c++) out[planar ? c * count + i : 3 * i + c] = (float)pixel[c] / SCALE;
        }
    }
    fclose(file);
    return out;
}

/* Line `n` of the labels. */
static const char *label(const char *path, size_t n, char *line, int room) {
    FILE *file = fopen(path, "r");
    size_t i;
    line[0] = '\0';
    for (i = 0; file != NULL && i <= n && fgets(line, room, file) != NULL; i++) {
    }
    if (file != NULL) fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    return line[0] != '\0' ? line : "?";
}

int main(int argc, char **argv) {
    char line[256];
    int64_t dims[4];
    float *input = NULL;
    tw_options options;
    tw_tensor_info info;
    tw_tensor result;
    tw_model *model = NULL;
    tw_session *session = NULL;
    size_t bytes, count, i, shown;
    int status = 1;

    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL.onnx LABELS.txt PICTURE.ppm\n", argv[0]);
        return 2;
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    if (tw_model_load(argv[1], &options, &model) || tw_model_input(model, 0, &info)) {
        failed(argv[1]);
    } else if ((input = read_picture(argv[3], &info, dims)) == NULL) {
        fprintf(stderr, "%s: no binary PPM, or the network wants no picture\n", argv[3]);
    } else {
        bytes = (size_t)(dims[1] * dims[2] * dims[3]) * sizeof *input;
        if (tw_session_new(model, &session) ||
            tw_session_set_input(session, 0, TW_F32, 4, dims, input, bytes) ||
            tw_session_run(session) || tw_session_output(session, 0, &result)) {
            failed("run");
        } else if (result.dtype == TW_F32) {
            const float *scores = (const float *)result.data;
            float below = 0;
            count = result.bytes / sizeof(float);
            for (shown = 0; shown < SHOWN && shown < count; shown++) {
                size_t best = count;
                for (i = 0; i < count; i++) {
                    if ((shown == 0 || scores[i] < below) && (best == count || scores[i] > scores[best])) {
                        best = i;
                    }
                }
                if (best == count) break;
                below = scores[best];
                printf("%8.4f  %s\n", (double)below, label(argv[2], best, line, (int)sizeof line));
            }
            status = 0;
        }
    }
    tw_session_free(session);
    tw_model_free(model);
    free(input);
    return status;
}
