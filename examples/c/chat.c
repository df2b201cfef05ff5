/* Answers questions with a language model: chat MODEL.gguf [TOKENS], a question per line of the input.
 *
 * A model with a chat template is asked in its form; another one goes on with the text. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tilewright.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tw_last_error());
    return 1;
}

/* Called with each piece of the answer. */
static int32_t show(void *user, int32_t token, const char *text, size_t length) {
    (void)user;
    (void)token;
    fwrite(text, 1, length, stdout);
    fflush(stdout);
    return 0;
}

/* One question and its answer. */
static int answer(const tw_model *model, const tw_llm *llm, const char *line, size_t most) {
    tw_message message;
    tw_generation options;
    char *text = NULL;
    uint32_t *tokens = NULL;
    size_t length = 0, count = 0;
    uint32_t flags = TW_WHOLE;
    int status = 1;

    /* The text of the conversation: asked for its length, then made. */
    message.role = "user";
    message.content = line;
    if (tw_chat_text(model, &message, 1, NULL, 0, &length) == TW_OK) {
        flags = TW_SPECIAL;
        text = (char *)malloc(length + 1);
        if (text == NULL || tw_chat_text(model, &message, 1, text, length, &length)) goto end;
    } else {
        length = strlen(line);
        text = (char *)malloc(length + 1);
        if (text == NULL) goto end;
        memcpy(text, line, length);
    }
    /* The same with its tokens. */
    if (tw_tokenize(model, text, length, flags, NULL, 0, &count)) goto end;
    tokens = (uint32_t *)malloc((count + 1) * sizeof *tokens);
    if (tokens == NULL || tw_tokenize(model, text, length, flags, tokens, count, &count)) goto end;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.max_tokens = most;
    if (tw_llm_generate(llm, tokens, count, &options, show, NULL, NULL)) goto end;
    putchar('\n');
    status = 0;
end:
    free(text);
    free(tokens);
    return status ? failed("answer") : 0;
}

int main(int argc, char **argv) {
    char line[1024];
    tw_options options;
    tw_sampling sampling;
    tw_model *model = NULL;
    tw_llm *llm = NULL;
    int status = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [TOKENS]\n", argv[0]);
        return 2;
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    memset(&sampling, 0, sizeof sampling);
    sampling.size = sizeof sampling;
    sampling.temperature = 0.7f;
    sampling.top_p = 0.95f;
    sampling.seed = 1;
    if (tw_model_load(argv[1], &options, &model) || tw_llm_new(model, &llm) ||
        tw_llm_set_sampling(llm, &sampling)) {
        status = failed(argv[1]);
    }
    while (status == 0 && fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[0] != '\0') status = answer(model, llm, line, argc > 2 ? (size_t)atoi(argv[2]) : 64);
    }
    tw_llm_free(llm);
    tw_model_free(model);
    return status;
}
