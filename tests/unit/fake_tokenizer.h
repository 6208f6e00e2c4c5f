/* SPDX-License-Identifier: MIT */
/*
 * A test double of the tokenizer, whose ids can be worked out in the head: id 0 .. 255 is that
 * byte, 256 is the special token "<s>", 257 "hello", 258 " world". Text becomes its bytes.
 * The folder "no-tokenizer" has none.
 */
#ifndef CTN_FAKE_TOKENIZER_H
#define CTN_FAKE_TOKENIZER_H

#include "tokenizer/tokenizer.h"

/* Tokenizers that were opened and not closed. */
int fake_tokenizer_open_count(void);

#endif
