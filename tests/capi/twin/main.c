/* Two static libraries of Rust in one program. */

#include "../check.h"

int64_t twin_squares(int32_t n);

int main(int argc, char **argv) {
    tw_model *model = NULL;
    CHECK(argc == 2 && twin_squares(4) == 14);
    DONE(tw_model_load(argv[1], NULL, &model));
    CHECK(twin_squares(100) == 328350);
    tw_model_free(model);
    puts("twin: ok");
    return 0;
}
