// SPDX-License-Identifier: Apache-2.0
// What a fake module is linked against and does not find when it is opened.
extern "C" int TaktFakeLibrary();
int TaktFakeLibrary() { return 0; }
