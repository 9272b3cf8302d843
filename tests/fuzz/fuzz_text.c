/* links: runtime */
/* The reader of text, as the data of a model with tokens and next tokens below 300. */
#include "fuzz_file.h"
#include "fuzz_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_stream("text", fuzz_path(data, n));
    return 0;
}
