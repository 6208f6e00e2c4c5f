// SPDX-License-Identifier: MIT
#include "tokenizer/unicode.h"

#include <string.h>
#include <unictype.h>

enum ctn_tok_utf8_state ctn_tok_utf8_feed(struct ctn_tok_utf8 *u, uint8_t byte)
{
	if (u->need) {
		if (byte < u->lo || byte > u->hi) {
			u->need = 0;
			return CTN_TOK_UTF8_BAD_AGAIN;
		}
		u->bytes[u->len++] = (char)byte;
		u->lo = 0x80;
		u->hi = 0xBF;
		return --u->need ? CTN_TOK_UTF8_MORE : CTN_TOK_UTF8_DONE;
	}
	u->bytes[0] = (char)byte;
	u->len = 1;
	u->lo = 0x80;
	u->hi = 0xBF;
	if (byte < 0x80)
		return CTN_TOK_UTF8_DONE;
	if (byte < 0xC2 || byte > 0xF4)
		return CTN_TOK_UTF8_BAD;
	/* The second byte's range rules out overlong forms, surrogates and more than U+10FFFF. */
	if (byte < 0xE0) {
		u->need = 1;
	} else if (byte < 0xF0) {
		u->need = 2;
		if (byte == 0xE0)
			u->lo = 0xA0;
		else if (byte == 0xED)
			u->hi = 0x9F;
	} else {
		u->need = 3;
		if (byte == 0xF0)
			u->lo = 0x90;
		else if (byte == 0xF4)
			u->hi = 0x8F;
	}
	return CTN_TOK_UTF8_MORE;
}

size_t ctn_tok_utf8_check(const char *text, size_t len)
{
	struct ctn_tok_utf8 u = {0};
	size_t start = 0;

	for (size_t i = 0; i < len; i++) {
		enum ctn_tok_utf8_state state = ctn_tok_utf8_feed(&u, (uint8_t)text[i]);

		if (state == CTN_TOK_UTF8_DONE)
			start = i + 1;
		else if (state != CTN_TOK_UTF8_MORE)
			return start;
	}
	return start;
}

size_t ctn_tok_utf8_decode(const char *s, uint32_t *cp)
{
	const unsigned char *b = (const unsigned char *)s;

	if (b[0] < 0x80) {
		*cp = b[0];
		return 1;
	}
	if (b[0] < 0xE0) {
		*cp = (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu);
		return 2;
	}
	if (b[0] < 0xF0) {
		*cp = (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu);
		return 3;
	}
	*cp = (b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu);
	return 4;
}

size_t ctn_tok_utf8_encode(uint32_t cp, char out[4])
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		out[0] = (char)(0xC0 | cp >> 6);
		out[1] = (char)(0x80 | (cp & 0x3F));
		return 2;
	}
	if (cp < 0x10000) {
		out[0] = (char)(0xE0 | cp >> 12);
		out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
		out[2] = (char)(0x80 | (cp & 0x3F));
		return 3;
	}
	out[0] = (char)(0xF0 | cp >> 18);
	out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
	out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
	out[3] = (char)(0x80 | (cp & 0x3F));
	return 4;
}

const char *ctn_tok_find(const char *text, size_t len, const char *what, size_t what_len)
{
	const char *end = text + len;

	while ((size_t)(end - text) >= what_len) {
		text = memchr(text, what[0], (size_t)(end - text) - what_len + 1);
		if (!text || memcmp(text, what, what_len) == 0)
			return text;
		text++;
	}
	return NULL;
}

bool ctn_tok_is_space(uint32_t cp)
{
	if (cp < 0x1680)
		return cp == ' ' || (cp >= '\t' && cp <= '\r') || cp == 0x85 || cp == 0xA0;
	return cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
	       cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool ctn_tok_is_word(uint32_t cp)
{
	const uint32_t categories = UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd | UC_CATEGORY_MASK_Pc;
	const ucs4_t known = ctn_tok_stand_in_for(cp);

	return uc_is_property_alphabetic(known) || uc_is_property_join_control(known) ||
	       uc_is_general_category_withtable(known, categories);
}

size_t ctn_tok_spaces_at_start(const char *text, size_t len)
{
	size_t n = 0;

	while (n < len) {
		uint32_t cp;
		size_t bytes = ctn_tok_utf8_decode(text + n, &cp);

		if (!ctn_tok_is_space(cp))
			break;
		n += bytes;
	}
	return n;
}

size_t ctn_tok_spaces_at_end(const char *text, size_t len)
{
	size_t end = len;

	while (end) {
		size_t start = end - 1;
		uint32_t cp;

		while (start && ((uint8_t)text[start] & 0xC0) == 0x80)
			start--;
		ctn_tok_utf8_decode(text + start, &cp);
		if (!ctn_tok_is_space(cp))
			break;
		end = start;
	}
	return len - end;
}

bool ctn_tok_is_inert(uint32_t cp)
{
	size_t lo = 0, hi = ctn_tok_inert_count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (cp > ctn_tok_inert[mid].last)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < ctn_tok_inert_count && cp >= ctn_tok_inert[lo].first;
}

uint32_t ctn_tok_stand_in_for(uint32_t cp)
{
	size_t lo = 0, hi = ctn_tok_younger_count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (cp > ctn_tok_younger[mid].last)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo < ctn_tok_younger_count && cp >= ctn_tok_younger[lo].first)
		return ctn_tok_younger[lo].to;
	return cp;
}

bool ctn_tok_range_is_young(uint32_t first, uint32_t last)
{
	for (size_t i = 0; i < ctn_tok_younger_count; i++) {
		const struct ctn_tok_stand_in *y = &ctn_tok_younger[i];

		if ((first <= y->last && y->first <= last) || (first <= y->to && y->to <= last))
			return true;
	}
	return false;
}

/* Bytes that print in Latin-1 stand for themselves; the 68 others follow from U+0100 on, in
 * ascending order: 0x00-0x20, 0x7F-0xA0, 0xAD. */
uint32_t ctn_tok_byte_to_char(uint8_t byte)
{
	if (byte <= 0x20)
		return 0x100u + byte;
	if (byte >= 0x7F && byte <= 0xA0)
		return 0x121u + byte - 0x7F;
	if (byte == 0xAD)
		return 0x143;
	return byte;
}

int ctn_tok_char_to_byte(uint32_t cp)
{
	if (cp >= CTN_TOK_ALPHABET_END)
		return -1;
	if (cp == 0x143)
		return 0xAD;
	if (cp >= 0x121)
		return (int)(cp - 0x121 + 0x7F);
	if (cp >= 0x100)
		return (int)(cp - 0x100);
	return ctn_tok_byte_to_char((uint8_t)cp) == cp ? (int)cp : -1;
}
