/* SPDX-License-Identifier: MIT */
/* Stop strings in a text that comes in pieces. Private to server/. */
#ifndef CTN_SERVER_STOP_H
#define CTN_SERVER_STOP_H

#include "server/openai_request.h"

/*
 * Looks for the stop string that ends first (of those that end together, the longest) in
 * text[0 .. len), of which [0 .. seen) was looked at before. True: *cut is where it starts.
 * False: *cut is where the longest suffix starts that could still become one; what is in
 * front of it can go to the client. How the text was cut into pieces changes nothing.
 */
bool ctn_stop_find(const struct ctn_stop *stops, size_t count, const char *text, size_t len,
		   size_t seen, size_t *cut);

#endif
