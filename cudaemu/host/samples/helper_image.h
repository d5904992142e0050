// What the programs of NVIDIA's cuda-samples take from their helper_image.h: images in PGM and PPM, files of numbers,
// comparisons.
#pragma once

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <type_traits>
#include <vector>

#include "helper_string.h"

#ifndef MIN
#define MIN(A, B) ((A) < (B) ? (A) : (B))
#endif
#ifndef MAX
#define MAX(A, B) ((A) > (B) ? (A) : (B))
#endif

namespace emulator_samples {

// A PGM (one channel) or PPM (three) of 8 bits in binary form. Says why if it cannot be read.
struct Image {
  unsigned width = 0, height = 0, channels = 0;
  std::vector<unsigned char> data;

  bool read(const char *name) {
    std::ifstream file(name ? name : "", std::ios::binary);
    const std::string kind = word(file);
    channels = kind == "P5" ? 1 : kind == "P6" ? 3 : 0;
    if (!channels) return fprintf(stderr, "%s is not there, or not a binary PGM or PPM\n", name ? name : "?"), false;
    width = unsigned(atoi(word(file).c_str())), height = unsigned(atoi(word(file).c_str()));
    word(file);  // the largest value
    data.resize(size_t(width) * height * channels);
    file.read(reinterpret_cast<char *>(data.data()), std::streamsize(data.size()));
    if (!file) return fprintf(stderr, "%s is too short\n", name), false;
    return true;
  }
  bool write(const char *name) const {
    std::ofstream file(name, std::ios::binary);
    file << (channels == 1 ? "P5\n" : "P6\n") << width << "\n" << height << "\n255\n";
    file.write(reinterpret_cast<const char *>(data.data()), std::streamsize(data.size()));
    if (!file) fprintf(stderr, "%s cannot be written\n", name);
    return bool(file);
  }

 private:
  // The next word of the header, and one character behind it.
  static std::string word(std::istream &file) {
    std::string text;
    while (file >> text && text[0] == '#') std::getline(file, text);
    file.get();
    return text;
  }
};

template <class T>
T from_byte(unsigned char value) {
  return std::is_floating_point<T>::value ? T(float(value) / 255.0f) : T(value);
}
template <class T>
unsigned char to_byte(T value) {
  return std::is_floating_point<T>::value ? (unsigned char)(float(value) * 255.0f) : (unsigned char)(value);
}

// Whether at most that part of the values differs by more than epsilon (or all agree, if the part is 0).
template <class T>
bool alike(const T *one, const T *other, size_t count, float epsilon, float part) {
  size_t wrong = 0;
  for (size_t at = 0; at < count; ++at) wrong += !(fabsf(float(one[at]) - float(other[at])) <= epsilon);
  if (wrong) printf("%zu of %zu values differ by more than %g\n", wrong, count, double(epsilon));
  return part == 0 ? wrong == 0 : float(wrong) < float(count) * part;
}
inline bool images_alike(const char *one, const char *other, float epsilon, float part, unsigned channels) {
  Image a, b;
  if (!a.read(one) || !b.read(other)) return false;
  const bool fit = a.width == b.width && a.height == b.height && a.channels == channels && b.channels == channels;
  if (!fit) return fprintf(stderr, "%s and %s differ in size\n", one, other), false;
  return alike(a.data.data(), b.data.data(), a.data.size(), epsilon, part);
}
template <class T>
bool files_alike(const char *one, const char *other, unsigned count, float epsilon, float part, const char *program) {
  std::vector<T> values[2] = {std::vector<T>(count), std::vector<T>(count)};
  char *const path = sdkFindFilePath(other, program);
  const char *const names[2] = {one, path};
  for (int at = 0; at < 2; ++at) {
    FILE *const file = names[at] ? fopen(names[at], "rb") : NULL;
    if (!file) return fprintf(stderr, "%s cannot be read\n", at ? other : one), free(path), false;
    values[at].resize(fread(values[at].data(), sizeof(T), count, file));
    fclose(file);
  }
  free(path);
  const size_t both = std::min(values[0].size(), values[1].size());
  return alike(values[0].data(), values[1].data(), both, epsilon, part);
}

}  // namespace emulator_samples

inline bool __loadPPM(const char *name, unsigned char **data, unsigned *width, unsigned *height, unsigned *channels) {
  emulator_samples::Image image;
  if (!image.read(name)) return false;
  *width = image.width, *height = image.height, *channels = image.channels;
  if (!*data) *data = static_cast<unsigned char *>(malloc(image.data.size()));
  std::copy(image.data.begin(), image.data.end(), *data);
  return true;
}

// Images are put where *data points to, or into memory of malloc if that is null. Floats are 0 to 1.
template <class T>
bool sdkLoadPGM(const char *name, T **data, unsigned *width, unsigned *height) {
  emulator_samples::Image image;
  if (!image.read(name)) return false;
  *width = image.width, *height = image.height;
  if (!*data) *data = static_cast<T *>(malloc(image.data.size() * sizeof(T)));
  std::transform(image.data.begin(), image.data.end(), *data, emulator_samples::from_byte<T>);
  return true;
}
// A colour image with a fourth channel, which is 0.
template <class T>
bool sdkLoadPPM4(const char *name, T **data, unsigned *width, unsigned *height) {
  emulator_samples::Image image;
  if (!image.read(name) || image.channels != 3) return false;
  *width = image.width, *height = image.height;
  const size_t pixels = size_t(image.width) * image.height;
  if (!*data) *data = static_cast<T *>(malloc(4 * pixels * sizeof(T)));
  for (size_t at = 0; at < 4 * pixels; ++at) (*data)[at] = at % 4 == 3 ? T(0) : T(image.data[at / 4 * 3 + at % 4]);
  return true;
}
inline bool sdkLoadPPM4ub(const char *name, unsigned char **data, unsigned *width, unsigned *height) {
  return sdkLoadPPM4(name, data, width, height);
}
inline bool sdkLoadPPMub(const char *name, unsigned char **data, unsigned *width, unsigned *height) {
  return sdkLoadPGM(name, data, width, height);
}
template <class T>
bool sdkSavePGM(const char *name, T *data, unsigned width, unsigned height) {
  emulator_samples::Image image;
  image.width = width, image.height = height, image.channels = 1;
  image.data.resize(size_t(width) * height);
  std::transform(data, data + image.data.size(), image.data.begin(), emulator_samples::to_byte<T>);
  return image.write(name);
}
inline bool sdkSavePPM4ub(const char *name, unsigned char *data, unsigned width, unsigned height) {
  emulator_samples::Image image;
  image.width = width, image.height = height, image.channels = 3;
  image.data.resize(size_t(width) * height * 3);
  for (size_t at = 0; at < image.data.size(); ++at) image.data[at] = data[at / 3 * 4 + at % 3];
  return image.write(name);
}
inline bool sdkComparePPM(const char *one, const char *other, float epsilon, float part, bool) {
  return emulator_samples::images_alike(one, other, epsilon, part, 3);
}
inline bool sdkComparePGM(const char *one, const char *other, float epsilon, float part, bool) {
  return emulator_samples::images_alike(one, other, epsilon, part, 1);
}

// Numbers as text.
template <class T>
bool sdkReadFile(const char *name, T **data, unsigned *count, bool) {
  std::ifstream file(name ? name : "");
  std::vector<T> values;
  for (T value; file >> value;) values.push_back(value);
  if (values.empty()) return fprintf(stderr, "%s cannot be read\n", name ? name : "?"), false;
  if (*data && *count != values.size()) return fprintf(stderr, "%s has another size\n", name), false;
  if (!*data) *data = static_cast<T *>(malloc(values.size() * sizeof(T)));
  *count = unsigned(values.size());
  std::copy(values.begin(), values.end(), *data);
  return true;
}
template <class T, class S>
bool sdkWriteFile(const char *name, const T *data, unsigned count, S epsilon, bool, bool append = false) {
  std::ofstream file(name, append ? std::ios::app : std::ios::trunc);
  file << "# " << epsilon << "\n";
  for (unsigned at = 0; at < count; ++at) file << data[at] << ' ';
  file << std::endl;
  if (!file) fprintf(stderr, "%s cannot be written\n", name);
  return bool(file);
}
// Numbers as bytes.
inline void sdkDumpBin(void *data, unsigned bytes, const char *name) {
  FILE *const file = fopen(name, "wb");
  if (!file) return;
  fwrite(data, bytes, 1, file);
  fclose(file);
}
inline bool sdkCompareBin2BinUint(
    const char *one, const char *other, unsigned count, float epsilon, float part, char *program) {
  return emulator_samples::files_alike<unsigned>(one, other, count, epsilon, part, program);
}
inline bool sdkCompareBin2BinFloat(
    const char *one, const char *other, unsigned count, float epsilon, float part, char *program) {
  return emulator_samples::files_alike<float>(one, other, count, epsilon, part, program);
}

template <class T, class S>
bool compareData(const T *reference, const T *data, unsigned count, S epsilon, float part) {
  return emulator_samples::alike(reference, data, count, float(epsilon), part);
}
// Whether |data - reference| <= epsilon |reference|, in the norm of all values.
inline bool sdkCompareL2fe(const float *reference, const float *data, unsigned count, float epsilon) {
  double error = 0, size = 0;
  for (unsigned at = 0; at < count; ++at) {
    error += double(data[at] - reference[at]) * double(data[at] - reference[at]);
    size += double(reference[at]) * double(reference[at]);
  }
  return size > 0 && sqrt(error / size) < double(epsilon);
}
