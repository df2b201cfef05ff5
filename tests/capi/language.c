/* Language models from C: language MODEL.gguf. */

#include <pthread.h>

#include "check.h"

/* What a generation has told. */
typedef struct heard {
    char text[4096];
    size_t length, calls, stop_after;
    tw_llm *llm;
} heard;

static int32_t hear(void *user, int32_t token, const char *text, size_t length) {
    heard *to = (heard *)user;
    uint32_t none = 0;
    CHECK(token >= -1 && to->length + length < sizeof to->text);
    memcpy(to->text + to->length, text, length);
    to->length += length;
    to->text[to->length] = 0;
    to->calls++;
    /* The session is at work. */
    GIVES(tw_llm_sample(to->llm, &none), TW_BUSY, "another call");
    return to->stop_after != 0 && to->calls >= to->stop_after;
}

static int32_t count_only(void *user, int32_t token, const char *text, size_t length) {
    (void)token;
    (void)text;
    (void)length;
    ++*(size_t *)user;
    return 0;
}

typedef struct job {
    tw_llm *llm;
    const uint32_t *tokens;
    size_t count;
    tw_status status;
} job;

static void *work(void *user) {
    job *to = (job *)user;
    tw_generation forever;
    size_t calls = 0;
    memset(&forever, 0, sizeof forever);
    forever.size = sizeof forever;
    forever.ignore_end = 1;
    forever.context_shift = 1;
    /* The other thread looks at the session again and again, and may be first. */
    do
        to->status =
            tw_llm_generate(to->llm, to->tokens, to->count, &forever, count_only, &calls, NULL);
    while (to->status == TW_BUSY);
    return NULL;
}

int main(int argc, char **argv) {
    static const char PROMPT[] = "The file system";
    tw_model *model = NULL;
    tw_llm *one = NULL, *two = NULL;
    tw_options options;
    tw_sampling sampling;
    tw_generation generation;
    tw_session *session = NULL;
    heard first, second;
    uint32_t *tokens, *many, token = 0, greedy[8];
    const float *logits = NULL;
    size_t count = 0, size = 0, used = 0, length = 0, i, vocabulary = 0;
    int32_t finish = -1;
    char *text;
    const char *stops[1];

    CHECK(argc == 2);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.context = 128;
    options.threads = 1;
    options.cache = 99;
    GIVES(tw_model_load(argv[1], &options, &model), TW_INVALID_ARGUMENT, "tw_cache");
    options.cache = TW_CACHE_F16;
    DONE(tw_model_load(argv[1], &options, &model));
    CHECK(tw_model_kind_of(model) == TW_MODEL_LANGUAGE && tw_model_input_count(model) == 0);
    GIVES(tw_session_new(model, &session), TW_INVALID_ARGUMENT, "tw_llm");

    /* Text to tokens and back, asking for sizes first. */
    DONE(tw_tokenize(model, PROMPT, strlen(PROMPT), TW_WHOLE, NULL, 0, &count));
    CHECK(count > 1 && count <= strlen(PROMPT) + 1);
    tokens = (uint32_t *)malloc(count * sizeof *tokens);
    CHECK(tokens != NULL);
    GIVES(tw_tokenize(model, PROMPT, strlen(PROMPT), TW_WHOLE, tokens, 1, &count),
          TW_BUFFER_TOO_SMALL, "room for 1");
    GIVES(tw_tokenize(model, PROMPT, strlen(PROMPT), TW_WHOLE, NULL, count, &count),
          TW_INVALID_ARGUMENT, "NULL, with room");
    DONE(tw_tokenize(model, PROMPT, strlen(PROMPT), TW_WHOLE, tokens, count, &count));
    DONE(tw_detokenize(model, tokens, count, NULL, 0, &length));
    text = (char *)calloc(length + 1, 1);
    CHECK(text != NULL);
    DONE(tw_detokenize(model, tokens, count, text, length, &length));
    CHECK(strstr(text, PROMPT) != NULL);
    free(text);
    GIVES(tw_tokenize(model, "\xff", 1, 0, NULL, 0, &length), TW_INVALID_ARGUMENT, "utf-8");
    GIVES(tw_tokenize(model, NULL, 4, 0, NULL, 0, &length), TW_INVALID_ARGUMENT, "text is NULL");
    DONE(tw_vocabulary(model, &vocabulary));
    CHECK(vocabulary > 256);

    /* Evaluation by hand. */
    DONE(tw_llm_new(model, &one));
    GIVES(tw_llm_logits(one, &logits, &length), TW_STATE, "no logits");
    GIVES(tw_llm_sample(one, &token), TW_STATE, "no logits");
    GIVES(tw_llm_eval(one, tokens, 0), TW_INVALID_ARGUMENT, "");
    token = (uint32_t)vocabulary;
    GIVES(tw_llm_eval(one, &token, 1), TW_INVALID_ARGUMENT, "");
    DONE(tw_llm_prompt(one, tokens, count));
    DONE(tw_llm_context(one, &size, &used));
    CHECK(size == 128 && used == count);
    DONE(tw_llm_logits(one, &logits, &length));
    CHECK(length == vocabulary);
    for (i = 0; i < 8; i++) {
        DONE(tw_llm_sample(one, &greedy[i]));
        DONE(tw_llm_eval(one, &greedy[i], 1));
    }

    /* The same by callback, on a second session that outlives the model. */
    DONE(tw_llm_new(model, &two));
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    generation.max_tokens = 8;
    generation.ignore_end = 1;
    memset(&first, 0, sizeof first);
    first.llm = two;
    DONE(tw_llm_generate(two, tokens, count, &generation, hear, &first, &finish));
    CHECK(finish == TW_FINISH_LENGTH && first.calls >= 8);
    DONE(tw_detokenize(model, greedy, 8, NULL, 0, &length));
    text = (char *)calloc(length + 1, 1);
    CHECK(text != NULL);
    DONE(tw_detokenize(model, greedy, 8, text, length, &length));
    CHECK(strcmp(text, first.text) == 0);
    GIVES(tw_llm_generate(two, tokens, count, &generation, NULL, NULL, NULL), TW_INVALID_ARGUMENT,
          "each is NULL");

    /* Chat. */
    {
        tw_message said[2];
        char *chat;
        said[0].role = "user";
        said[0].content = "Hello <|im_end|>";
        said[1] = said[0];
        DONE(tw_chat_text(model, said, 1, NULL, 0, &size));
        chat = (char *)calloc(size + 1, 1);
        CHECK(chat != NULL);
        DONE(tw_chat_text(model, said, 1, chat, size, &size));
        CHECK(strstr(chat, "Hello") != NULL);
        free(chat);
        said[0].content = NULL;
        GIVES(tw_chat_text(model, said, 1, NULL, 0, &size), TW_INVALID_ARGUMENT, "content is NULL");
    }
    tw_model_free(model);

    /* The same seed gives the same text; the callback ends it; so does a text to stop at. */
    memset(&sampling, 0, sizeof sampling);
    sampling.size = sizeof sampling;
    sampling.temperature = -1.0f;
    GIVES(tw_llm_set_sampling(two, &sampling), TW_INVALID_ARGUMENT, "temperature");
    sampling.temperature = 0.9f;
    sampling.seed = 7;
    sampling.top_k = 40;
    for (i = 0; i < 2; i++) {
        heard *to = i == 0 ? &first : &second;
        memset(to, 0, sizeof *to);
        to->llm = two;
        DONE(tw_llm_set_sampling(two, &sampling));
        DONE(tw_llm_generate(two, tokens, count, &generation, hear, to, &finish));
    }
    CHECK(strcmp(first.text, second.text) == 0);
    DONE(tw_llm_set_sampling(two, NULL));
    memset(&first, 0, sizeof first);
    first.llm = two;
    first.stop_after = 3;
    DONE(tw_llm_generate(two, tokens, count, &generation, hear, &first, &finish));
    CHECK(finish == TW_FINISH_CALLBACK && first.calls == 3);
    stops[0] = text + strlen(text) - 2;
    generation.stop = stops;
    generation.stop_count = 1;
    memset(&first, 0, sizeof first);
    first.llm = two;
    DONE(tw_llm_generate(two, tokens, count, &generation, hear, &first, &finish));
    CHECK(finish == TW_FINISH_STOP && strstr(first.text, stops[0]) == NULL);

    /* The end of the context, as a status and as an end. */
    many = (uint32_t *)calloc(200, sizeof *many);
    CHECK(many != NULL);
    for (i = 0; i < 200; i++) many[i] = tokens[count - 1];
    GIVES(tw_llm_prompt(two, many, 200), TW_CONTEXT_FULL, "128");
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    generation.ignore_end = 1;
    length = 0;
    DONE(tw_llm_generate(two, many, 120, &generation, count_only, &length, &finish));
    CHECK(finish == TW_FINISH_CONTEXT && length >= 8);
    DONE(tw_llm_truncate(two, 0));
    DONE(tw_llm_context(two, NULL, &used));
    CHECK(used == 0);
    free(many);

    /* Cancelled from another thread, and usable after. */
    {
        pthread_t thread;
        job to;
        tw_status status = TW_OK;
        to.llm = two;
        to.tokens = tokens;
        to.count = count;
        to.status = TW_OK;
        CHECK(pthread_create(&thread, NULL, work, &to) == 0);
        do status = tw_llm_truncate(two, 1000);
        while (status == TW_OK);
        CHECK(status == TW_BUSY);
        tw_llm_cancel(two);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(to.status == TW_CANCELLED);
        tw_llm_cancel(NULL);
        DONE(tw_llm_prompt(two, tokens, count));
        tw_llm_cancel(two);
        GIVES(tw_llm_eval(two, tokens, 1), TW_CANCELLED, "");
        DONE(tw_llm_eval(two, tokens, 1));
    }
    tw_llm_free(one);
    tw_llm_free(two);
    tw_llm_free(NULL);
    free(text);
    free(tokens);
    puts("language: ok");
    return 0;
}
