/* Keyword spotting over a stream of sound: keywords MODEL.onnx SOUND.wav
 *
 * For the network of MLPerf Tiny: each second of 16 kHz becomes 49 x 10 cepstral coefficients. The sound is
 * read in steps of half a second, as from a microphone, and what is heard in the last second is printed. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tilewright.h>

enum { RATE = 16000, FRAME = 480, STEP = 320, FFT = 512, BINS = FFT / 2 + 1, BANDS = 40, KEPT = 10 };
enum { FRAMES = (RATE - FRAME) / STEP + 1 };

static const char *const WORDS[] = {"down", "go",   "left", "no",  "off",       "on",
                                    "right", "stop", "up",   "yes", "(silence)", "(something else)"};
static const double PI = 3.14159265358979323846;

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tw_last_error());
    return 1;
}

static double mel(double hz) { return 1127.0 * log(1.0 + hz / 700.0); }

/* The coefficients of one second. */
static void features(const float *sound, float *out) {
    static double cosines[FFT], weights[BANDS][BINS];
    static int ready = 0;
    double low = mel(20.0), step = (mel(4000.0) - low) / (BANDS + 1), bands[BANDS];
    float peak = 0;
    int frame, i, k, b;
    if (!ready) {
        for (i = 0; i < FFT; i++) cosines[i] = cos(2.0 * PI * i / FFT);
        for (b = 0; b < BANDS; b++) {
            for (k = 1; k < BINS; k++) {
                double up = (mel((double)k * RATE / FFT) - low - step * b) / step;
                double least = up < 2.0 - up ? up : 2.0 - up;
                weights[b][k] = least > 0.0 ? least : 0.0;
            }
        }
        ready = 1;
    }
    for (i = 0; i < RATE; i++) {
        if (sound[i] > peak) peak = sound[i];
    }
    for (frame = 0; frame < FRAMES; frame++) {
        double window[FRAME];
        for (i = 0; i < FRAME; i++) {
            double x = sound[frame * STEP + i] / (peak > 0 ? (double)peak : 1.0);
            window[i] = x * (0.5 - 0.5 * cos(2.0 * PI * i / FRAME));
        }
        for (b = 0; b < BANDS; b++) bands[b] = 1e-6;
        for (k = 1; k < BINS; k++) {
            double re = 0, im = 0, magnitude;
            if (weights[0][k] == 0 && (double)k * RATE / FFT > 4000.0) break;
            for (i = 0; i < FRAME; i++) {
                re += window[i] * cosines[i * k % FFT];
                im += window[i] * cosines[(i * k + FFT / 4) % FFT];
            }
            magnitude = sqrt(re * re + im * im);
            for (b = 0; b < BANDS; b++) bands[b] += weights[b][k] * magnitude;
        }
        for (k = 0; k < KEPT; k++) {
            double sum = 0;
            for (b = 0; b < BANDS; b++) sum += log(bands[b]) * cos(PI * k * (b + 0.5) / BANDS);
            out[frame * KEPT + k] = (float)(sum * sqrt(2.0 / BANDS));
        }
    }
}

/* Opens a WAV of 16-bit samples, one channel, 16 kHz, at its first sample. */
static FILE *open_wav(const char *path) {
    unsigned char head[12], chunk[8], form[16];
    unsigned long size, known = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    if (fread(head, 1, 12, file) == 12 && !memcmp(head, "RIFF", 4) && !memcmp(head + 8, "WAVE", 4)) {
        while (fread(chunk, 1, 8, file) == 8) {
            size = chunk[4] | (unsigned long)chunk[5] << 8 | (unsigned long)chunk[6] << 16 |
                   (unsigned long)chunk[7] << 24;
            if (!memcmp(chunk, "data", 4) && known) return file;
            if (!memcmp(chunk, "fmt ", 4) && size >= 16 && fread(form, 1, 16, file) == 16) {
                known = form[0] == 1 && form[2] == 1 && form[4] == (RATE & 255) &&
                        form[5] == RATE >> 8 && form[6] == 0 && form[14] == 16;
                size -= 16;
            }
            if (fseek(file, (long)(size + size % 2), SEEK_CUR) != 0) break;
        }
    }
    fclose(file);
    return NULL;
}

int main(int argc, char **argv) {
    static float sound[RATE], input[FRAMES * KEPT];
    const int64_t dims[] = {1, FRAMES, KEPT, 1};
    unsigned char bytes[RATE];
    size_t got, i;
    int half, status = 1;
    tw_options options;
    tw_tensor result;
    tw_model *model = NULL;
    tw_session *session = NULL;
    FILE *file;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.onnx SOUND.wav\n", argv[0]);
        return 2;
    }
    file = open_wav(argv[2]);
    if (file == NULL) {
        fprintf(stderr, "%s: no WAV of 16-bit samples, one channel, %d Hz\n", argv[2], RATE);
        return 1;
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    if (tw_model_load(argv[1], &options, &model) || tw_session_new(model, &session) ||
        tw_session_bind_input(session, 0, TW_F32, 4, dims, input, sizeof input)) {
        failed(argv[1]);
    } else {
        status = 0;
        for (half = 1; status == 0; half++) {
            got = fread(bytes, 1, RATE, file) / 2;
            if (got == 0) break;
            memmove(sound, sound + RATE / 2, RATE / 2 * sizeof *sound);
            for (i = 0; i < RATE / 2; i++) {
                int sample = i < got ? bytes[2 * i] | bytes[2 * i + 1] << 8 : 0;
                sound[RATE / 2 + i] = (float)(sample >= 32768 ? sample - 65536 : sample) / 32768.0f;
            }
            features(sound, input);
            if (tw_session_run(session) || tw_session_output(session, 0, &result)) {
                status = failed("run");
            } else if (result.dtype == TW_F32 && result.bytes == sizeof WORDS / sizeof *WORDS * sizeof(float)) {
                const float *scores = (const float *)result.data;
                size_t best = 0;
                for (i = 1; i < sizeof WORDS / sizeof *WORDS; i++) {
                    if (scores[i] > scores[best]) best = i;
                }
                printf("%4.1f s  %5.3f  %s\n", half * 0.5, (double)scores[best], WORDS[best]);
            }
        }
    }
    tw_session_free(session);
    tw_model_free(model);
    fclose(file);
    return status;
}
