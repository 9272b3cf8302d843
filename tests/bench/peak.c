/* peak.c - what this machine's BLAS and memory give, beside which a trainer's step is set.
 *
 *     OPENBLAS_NUM_THREADS=1 ./peak 0.05 C,N,T,512,768,50257 ...
 *
 * Arguments: the least seconds per figure, then products c = op(a) op(b), row-major, as a label, T or N for a
 * and for b, and m, n, k. Prints one JSON object: the core OpenBLAS takes this for, the best rate of a large
 * square product, of each product, and of y += a x over arrays that no cache holds. The best of several
 * runs counts: others may use the machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cblas.h>

extern char *openblas_get_corename(void) __attribute__((weak));

struct product {
    char label[32], a, b;
    long m, n, k;
};

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *numbers(long count)
{
    float *x = aligned_alloc(64, ((size_t)count * sizeof *x + 63) / 64 * 64);
    for (long i = 0; x != NULL && i < count; i++)
        x[i] = (float)(i % 17) * 0.01f;
    return x;
}

/* The best FLOP/s of P within SECONDS and at least three runs; below 0 when memory is short. */
static double product_rate(const struct product *p, double seconds)
{
    float *a = numbers(p->m * p->k), *b = numbers(p->k * p->n), *c = numbers(p->m * p->n);
    double best = -1, begun = clock_s();
    for (int run = 0; a != NULL && b != NULL && c != NULL && (run < 3 || clock_s() - begun < seconds); run++) {
        double t = clock_s();
        cblas_sgemm(CblasRowMajor, p->a == 'T' ? CblasTrans : CblasNoTrans, p->b == 'T' ? CblasTrans : CblasNoTrans,
                    (int)p->m, (int)p->n, (int)p->k, 1, a, (int)(p->a == 'T' ? p->m : p->k), b,
                    (int)(p->b == 'T' ? p->k : p->n), 0, c, (int)p->n);
        double rate = 2.0 * (double)p->m * (double)p->n * (double)p->k / (clock_s() - t);
        if (run > 0 && rate > best) /* the first touches the memory */
            best = rate;
    }
    free(a);
    free(b);
    free(c);
    return best;
}

/* Bytes per second of y += a x by one thread: two reads and a write. */
static double stream_rate(double seconds)
{
    enum { COUNT = 1 << 25 };
    float *x = numbers(COUNT), *y = numbers(COUNT);
    double best = -1, begun = clock_s();
    for (int run = 0; x != NULL && y != NULL && (run < 3 || clock_s() - begun < seconds); run++) {
        double t = clock_s();
        for (long i = 0; i < COUNT; i++)
            y[i] += 1e-3f * x[i];
        double rate = 12.0 * COUNT / (clock_s() - t);
        best = rate > best ? rate : best;
    }
    free(x);
    free(y);
    return best;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 0.1;
    struct product square = {"square", 'N', 'N', 2048, 2048, 2048};
    printf("{\"core\": \"%s\", \"square_flops_per_s\": %.6g, \"stream_bytes_per_s\": %.6g, \"products\": {",
           openblas_get_corename != NULL ? openblas_get_corename() : "unknown", product_rate(&square, 4 * seconds),
           stream_rate(seconds));
    for (int i = 2; i < argc; i++) {
        struct product p;
        if (sscanf(argv[i], "%31[^,],%c,%c,%ld,%ld,%ld", p.label, &p.a, &p.b, &p.m, &p.n, &p.k) != 6) {
            fprintf(stderr, "peak: \"%s\" is not label,N|T,N|T,m,n,k\n", argv[i]);
            return 2;
        }
        printf("%s\"%s\": %.6g", i == 2 ? "" : ", ", p.label, product_rate(&p, seconds));
    }
    printf("}}\n");
    return 0;
}
