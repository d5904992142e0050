// What the programs of NVIDIA's cuda-samples take from their helper_timer.h: a stop watch, in milliseconds.
#pragma once

#include <chrono>

#ifndef EXIT_WAIVED
#define EXIT_WAIVED 2
#endif

class StopWatchInterface {
 public:
  virtual ~StopWatchInterface() {}
  virtual void start() { begun_ = Clock::now(), runs_ = true; }
  virtual void stop() { total_ += since(), runs_ = false, ++sessions_; }
  virtual void reset() { total_ = 0, sessions_ = 0, begun_ = Clock::now(); }
  virtual float getTime() { return float(total_ + (runs_ ? since() : 0)); }
  virtual float getAverageTime() { return sessions_ ? float(total_ / sessions_) : 0; }

 private:
  typedef std::chrono::steady_clock Clock;
  double since() const { return std::chrono::duration<double, std::milli>(Clock::now() - begun_).count(); }
  Clock::time_point begun_ = Clock::now();
  double total_ = 0;
  int sessions_ = 0;
  bool runs_ = false;
};

inline bool sdkCreateTimer(StopWatchInterface **timer) { return *timer = new StopWatchInterface, true; }
inline bool sdkDeleteTimer(StopWatchInterface **timer) { return delete *timer, *timer = nullptr, true; }
inline bool sdkStartTimer(StopWatchInterface **timer) { return *timer ? (*timer)->start(), true : false; }
inline bool sdkStopTimer(StopWatchInterface **timer) { return *timer ? (*timer)->stop(), true : false; }
inline bool sdkResetTimer(StopWatchInterface **timer) { return *timer ? (*timer)->reset(), true : false; }
inline float sdkGetTimerValue(StopWatchInterface **timer) { return *timer ? (*timer)->getTime() : 0; }
inline float sdkGetAverageTimerValue(StopWatchInterface **timer) { return *timer ? (*timer)->getAverageTime() : 0; }
