/* pause.h - one turn of a wait that keeps the core: other hardware threads of the core get on meanwhile. */
#ifndef MPP_PAUSE_H
#define MPP_PAUSE_H

static inline void mpp_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
