/* xml_scan.h - a look over untrusted XML before libxml2 reads it. Internal to xml.c. */
#ifndef MPP_XML_SCAN_H
#define MPP_XML_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "ir/arena.h"

/* What is wrong with TEXT (in ARENA or constant), with *OUT_LINE; NULL: libxml2 may read it in time linear in SIZE. */
const char *mpp_xml_scan(struct mpp_arena *arena, const char *text, size_t size, int *out_line);

#endif
