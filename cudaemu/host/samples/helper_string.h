// What the programs of NVIDIA's cuda-samples take from their helper_string.h: options like -name=value, and data files.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <fstream>
#include <sstream>
#include <string>

#ifndef EXIT_WAIVED
#define EXIT_WAIVED 2
#endif
#define STRCASECMP strcasecmp
#define STRNCASECMP strncasecmp
#define STRCPY(TO, SIZE, FROM) strcpy(TO, FROM)
#define FOPEN(FILE, NAME, MODE) ((FILE) = fopen(NAME, MODE))
#define FOPEN_FAIL(RESULT) ((RESULT) == NULL)
#define SSCANF sscanf
#define SPRINTF sprintf

// How many such characters a text begins with.
inline int stringRemoveDelimiter(char delimiter, const char *text) {
  int count = 0;
  while (text[count] == delimiter && delimiter) ++count;
  return text[count] ? count : 0;
}

// The part of a file's name behind the last dot; 0 if there is none, else where it begins.
inline int getFileExtension(char *name, char **extension) {
  char *const dot = strrchr(name, '.');
  *extension = dot ? dot + 1 : NULL;
  return dot ? int(dot + 1 - name) : 0;
}

namespace emulator_samples {
// What stands behind the = of -name=value or name=value, "" behind -name, null if the option is not there.
inline const char *option(int argc, const char **argv, const char *name) {
  const size_t length = strlen(name);
  for (int at = 1; at < argc; ++at) {
    const char *const word = argv[at] + stringRemoveDelimiter('-', argv[at]);
    if (strncasecmp(word, name, length) != 0) continue;
    if (word[length] == '=') return word + length + 1;
    if (!word[length]) return word + length;
  }
  return NULL;
}
}  // namespace emulator_samples

inline bool checkCmdLineFlag(int argc, const char **argv, const char *name) {
  return emulator_samples::option(argc, argv, name) != NULL;
}
inline int getCmdLineArgumentInt(int argc, const char **argv, const char *name) {
  const char *const value = emulator_samples::option(argc, argv, name);
  return value ? atoi(value) : 0;
}
inline float getCmdLineArgumentFloat(int argc, const char **argv, const char *name) {
  const char *const value = emulator_samples::option(argc, argv, name);
  return value ? float(atof(value)) : 0;
}
template <class T>
bool getCmdLineArgumentValue(int argc, const char **argv, const char *name, T *value) {
  const char *const given = emulator_samples::option(argc, argv, name);
  if (given && *given) *value = T(atof(given));
  return given != NULL;
}
inline bool getCmdLineArgumentString(int argc, const char **argv, const char *name, char **value) {
  const char *const given = emulator_samples::option(argc, argv, name);
  *value = const_cast<char *>(given);
  return given != NULL;
}

// A data file in or above the current folder or that of the program, there or in its data or Common/data; the caller
// frees the path. Null if there is none.
inline char *sdkFindFilePath(const char *name, const char *program) {
  const std::string path = program ? program : "";
  const std::string folder = path.find('/') == std::string::npos ? "./" : path.substr(0, path.rfind('/') + 1);
  std::string up;
  for (int level = 0; level < 6; ++level, up += "../") {
    for (const std::string &from : {std::string("./"), folder}) {
      for (const char *const data : {"", "data/", "Common/data/"}) {
        const std::string candidate = from + up + data + name;
        FILE *const file = fopen(candidate.c_str(), "rb");
        if (!file) continue;
        fclose(file);
        return strdup(candidate.c_str());
      }
    }
  }
  printf("sdkFindFilePath: %s is not there\n", name);
  return NULL;
}
