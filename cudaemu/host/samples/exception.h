// What the programs of NVIDIA's cuda-samples take from their exception.h: exceptions that know their line.
#pragma once

#include <stdlib.h>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

template <class Standard>
class Exception : public Standard {
 public:
  explicit Exception(const std::string &what) : Standard(what) {}
  [[noreturn]] static void throw_it(const char *file, int line, const std::string &what) {
    throw Exception("Exception in file '" + std::string(file) + "' in line " + std::to_string(line) + "\n" + what);
  }
};

template <class Thrown>
inline void handleException(const Thrown &error) {
  std::cerr << error.what() << std::endl;
  exit(EXIT_FAILURE);
}

#define RUNTIME_EXCEPTION(WHAT) Exception<std::runtime_error>::throw_it(__FILE__, __LINE__, WHAT)
#define LOGIC_EXCEPTION(WHAT) Exception<std::logic_error>::throw_it(__FILE__, __LINE__, WHAT)
#define RANGE_EXCEPTION(WHAT) Exception<std::range_error>::throw_it(__FILE__, __LINE__, WHAT)
