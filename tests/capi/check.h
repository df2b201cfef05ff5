/* What the C tests share: every failed check says where, and ends the program with 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

#define CHECK(what)                                                                    \
    do {                                                                               \
        if (!(what)) {                                                                 \
            fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #what, \
                    tw_last_error());                                                  \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* The call gives this status and, if it is a failure, one line that contains `text`. */
#define GIVES(call, wanted, text)                                                             \
    do {                                                                                      \
        int status_ = (int)(call);                                                            \
        if (status_ != (int)(wanted) || (status_ != 0 && !strstr(tw_last_error(), text))) {   \
            fprintf(stderr, "%s:%d: %s\n  gives %s: %s\n  and not %s with \"%s\"\n", __FILE__, \
                    __LINE__, #call, tw_status_name(status_), tw_last_error(), #wanted, text); \
            exit(1);                                                                          \
        }                                                                                     \
        CHECK(strchr(tw_last_error(), '\n') == NULL);                                         \
    } while (0)

#define DONE(call) GIVES(call, TW_OK, "")

#endif
