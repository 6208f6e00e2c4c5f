/* SPDX-License-Identifier: MIT */
/* The commands of `computron`. Each gets its own name as argv[0] and returns the exit status:
 * 0, 1 when it failed (one line on stderr says why), 2 for wrong usage. */
#ifndef CTN_TOOLS_H
#define CTN_TOOLS_H

#define CTN_EXIT_FAILED 1
#define CTN_EXIT_USAGE  2

int ctn_tool_inspect(int argc, char **argv);
int ctn_tool_status(int argc, char **argv);
/* load, evict, pin and unpin, by the name it is called by. */
int ctn_tool_control(int argc, char **argv);
int ctn_tool_bench(int argc, char **argv);
/* 1 also when the bytes are others than the manifest says. */
int ctn_tool_verify(int argc, char **argv);
int ctn_tool_sim(int argc, char **argv);
/* 1 also when something blocks. */
int ctn_tool_doctor(int argc, char **argv);

#endif
