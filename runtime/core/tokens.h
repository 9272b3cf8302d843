/* tokens.h - a stream of token ids in mapped files, and the windows that samples are.
 *
 *     struct mpp_tokens *t;
 *     int code = mpp_tokens_open_glob("data/train_*.bin", &t, &error);     // or mpp_tokens_open_text
 *     code = mpp_tokens_set_window(t, 1025, &error);
 *     struct mpp_window w = mpp_tokens_window(t, seed, sample);
 *     mpp_tokens_read(t, w, position, count, ids);
 *     mpp_tokens_close(t);
 *
 * Shards: llm.c's (256 int32 header: magic 20240520, version 1, count, u16 ids; magic 20240801: u32 ids) or,
 * without a header, raw u16. A text file is a stream of its bytes.
 *
 * A window of LENGTH tokens lies within one shard. Sample i of the whole training starts at one of the
 * n places where a window fits, taken in file order: place floor(u n / 2^64), where u are the first
 * 64 bits of Philox(seed, window stream, counter i). */
#ifndef MPP_TOKENS_H
#define MPP_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"

struct mpp_tokens;

struct mpp_window {
    int shard;
    int64_t start; /* token of the shard */
};

/* The caller closes; on failure nothing is left open. */
int mpp_tokens_open_text(const char *path, struct mpp_tokens **tokens_out, struct mpp_error *error) MPP_RT_CHECKED;
int mpp_tokens_open_glob(const char *pattern, struct mpp_tokens **tokens_out, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_tokens_close(struct mpp_tokens *tokens);

int64_t mpp_tokens_count(const struct mpp_tokens *tokens);
/* Length of the windows; fails where none fits. */
int mpp_tokens_set_window(struct mpp_tokens *tokens, int64_t length, struct mpp_error *error) MPP_RT_CHECKED;
struct mpp_window mpp_tokens_window(const struct mpp_tokens *tokens, uint64_t seed, uint64_t sample);
/* COUNT tokens from POSITION of a window on. */
void mpp_tokens_read(const struct mpp_tokens *tokens, struct mpp_window window, int64_t position, int64_t count,
                     uint32_t *out);
/* Whether a shard has no header that says it holds tokens. */
bool mpp_tokens_raw(const struct mpp_tokens *tokens, int shard);
/* Path of a shard, for messages. */
const char *mpp_tokens_path(const struct mpp_tokens *tokens, int shard);

#endif
