// How the emulator calls a launcher: what its parameters are, as the compiler sees them, and a call with values from
// memory.
//
// build.py includes the learner's file and then this one, in one translation unit, and names the launcher with
// EMULATOR_CALL. No standard header is included: the file before may have defined any macro.
#pragma once

namespace emulator_call {

struct Type {     // mirrored in process.py
  char kind;      // p pointer, s signed, u unsigned, f floating, b bool, e enumeration, c class, S stream, v void
  char pointee;   // of a pointer: the same of what it points to
  char constant;  // of a pointer: 1 if what it points to is const
  unsigned size, pointee_size;
  const char *name;  // ends with the type: "... [with T = const float*]"
};

template <class T>
struct Plain {
  typedef T type;
  static constexpr bool constant = false;
};
template <class T>
struct Plain<const T> {
  typedef T type;
  static constexpr bool constant = true;
};
template <class T>
struct Plain<volatile T> {
  typedef T type;
  static constexpr bool constant = false;
};
template <class T>
struct Plain<const volatile T> {
  typedef T type;
  static constexpr bool constant = true;
};
template <class T>
struct Value {
  typedef T type;
};
template <class T>
struct Value<T &> {
  typedef T type;
};
template <class T>
struct Value<T &&> {
  typedef T type;
};

template <class T>
struct Kind {
  static constexpr char value = __is_enum(T) ? 'e' : 'c';
  static constexpr unsigned size = sizeof(T);
};
template <>
struct Kind<void> {
  static constexpr char value = 'v';
  static constexpr unsigned size = 0;
};
#define EMULATOR_KIND(TYPE, KIND)                  \
  template <>                                      \
  struct Kind<TYPE> {                              \
    static constexpr char value = KIND;            \
    static constexpr unsigned size = sizeof(TYPE); \
  };
EMULATOR_KIND(bool, 'b')
EMULATOR_KIND(char, char(-1) < char(0) ? 's' : 'u')
EMULATOR_KIND(signed char, 's')
EMULATOR_KIND(unsigned char, 'u')
EMULATOR_KIND(short, 's')
EMULATOR_KIND(unsigned short, 'u')
EMULATOR_KIND(int, 's')
EMULATOR_KIND(unsigned, 'u')
EMULATOR_KIND(long, 's')
EMULATOR_KIND(unsigned long, 'u')
EMULATOR_KIND(long long, 's')
EMULATOR_KIND(unsigned long long, 'u')
EMULATOR_KIND(float, 'f')
EMULATOR_KIND(double, 'f')
#undef EMULATOR_KIND

template <class T>
constexpr const char *name() {
  return __PRETTY_FUNCTION__;
}

template <class T>
struct Describe {
  static constexpr Type type() { return {Kind<T>::value, 0, 0, Kind<T>::size, 0, name<T>()}; }
};
template <class P>
struct Describe<P *> {
  typedef typename Plain<P>::type To;
  static constexpr Type type() {
    return {'p', Kind<To>::value, Plain<P>::constant, sizeof(P *), Kind<To>::size, name<P *>()};
  }
};
template <class R, class... A>
struct Describe<R (*)(A...)> {  // a function pointer: nothing that Python could pass
  static constexpr Type type() { return {'p', 'c', 1, sizeof(void *), 1, name<R (*)(A...)>()}; }
};
template <>
struct Describe<cudaStream_t> {
  static constexpr Type type() { return {'S', 0, 0, sizeof(cudaStream_t), 0, name<cudaStream_t>()}; }
};

template <unsigned... I>
struct Indices {};
template <unsigned N, unsigned... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I>
struct Count<0, I...> {
  typedef Indices<I...> type;
};

template <class R>
struct Result {
  template <class F>
  static int of(F call) {
    return int(call());
  }
};
template <>
struct Result<void> {
  template <class F>
  static int of(F call) {
    return call(), int(cudaPeekAtLastError());
  }
};

template <class R, class... A>
struct Launcher {
  static const Type *types(unsigned *count) {
    static const Type all[sizeof...(A) + 1] = {Describe<typename Plain<typename Value<A>::type>::type>::type()...};
    *count = sizeof...(A);
    return all;
  }
  template <unsigned... I>
  static int call(R (*function)(A...), void *const *values, Indices<I...>) {
    return Result<R>::of([&] {
      return function(static_cast<A>(*static_cast<typename Value<A>::type *>(values[I]))...);
    });
  }
  static int call(R (*function)(A...), void *const *values) {
    return call(function, values, typename Count<sizeof...(A)>::type());
  }
};
template <class R, class... A>
Launcher<R, A...> launcher(R (*)(A...)) {
  return {};
}

}  // namespace emulator_call

#define EMULATOR_CALL(FUNCTION)                                                   \
  extern "C" const emulator_call::Type *emulator_types(unsigned *count) {         \
    return decltype(emulator_call::launcher(&FUNCTION))::types(count);            \
  }                                                                               \
  extern "C" int emulator_call_launcher(void *const *values) {                    \
    return decltype(emulator_call::launcher(&FUNCTION))::call(&FUNCTION, values); \
  }
