// What the programs of NVIDIA's cuda-samples take from their multithreading.h: threads of the host.
#pragma once

#include <pthread.h>

typedef pthread_t CUTThread;
typedef void *(*CUT_THREADROUTINE)(void *);
#define CUT_THREADPROC void
#define CUT_THREADEND

struct CUTBarrier {
  pthread_mutex_t mutex;
  pthread_cond_t conditionVariable;
  int releaseCount, count;
};

inline CUTThread cutStartThread(CUT_THREADROUTINE function, void *data) {
  pthread_t thread;
  pthread_create(&thread, NULL, function, data);
  return thread;
}
inline void cutEndThread(CUTThread thread) { pthread_join(thread, NULL); }
inline void cutWaitForThreads(const CUTThread *threads, int count) {
  for (int at = 0; at < count; ++at) cutEndThread(threads[at]);
}
inline CUTBarrier cutCreateBarrier(int count) {
  CUTBarrier barrier = {};
  barrier.releaseCount = count;
  pthread_mutex_init(&barrier.mutex, NULL);
  pthread_cond_init(&barrier.conditionVariable, NULL);
  return barrier;
}
inline void cutIncrementBarrier(CUTBarrier *barrier) {
  pthread_mutex_lock(&barrier->mutex);
  if (++barrier->count >= barrier->releaseCount) pthread_cond_signal(&barrier->conditionVariable);
  pthread_mutex_unlock(&barrier->mutex);
}
inline void cutWaitForBarrier(CUTBarrier *barrier) {
  pthread_mutex_lock(&barrier->mutex);
  while (barrier->count < barrier->releaseCount) pthread_cond_wait(&barrier->conditionVariable, &barrier->mutex);
  pthread_mutex_unlock(&barrier->mutex);
}
inline void cutDestroyBarrier(CUTBarrier *barrier) {
  pthread_mutex_destroy(&barrier->mutex);
  pthread_cond_destroy(&barrier->conditionVariable);
}
