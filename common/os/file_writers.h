// FileWriters: whether a file is open for writing. A file that is saved in place is complete once its writer has closed
// it, however long the writer pauses in between.

#ifndef COMMON_OS_FILE_WRITERS_H_
#define COMMON_OS_FILE_WRITERS_H_

namespace berth {

enum class FileWriters {
  // No process of this machine has the file open for writing, or mapped so.
  kNone,
  kSome,
  // The kernel does not report it: the file belongs to another user, or its file system knows only its own writers.
  kUnknown,
};

// Returns whether `file` was open for writing at one moment of the call. A process that opens the file for writing
// meanwhile may wait some microseconds.
// Requires: `file` is a regular file, opened for reading only, whose fd signals no input.
FileWriters FindWriters(int file);

}  // namespace berth

#endif  // COMMON_OS_FILE_WRITERS_H_
